"""`python -m dev.job`: a command in cgroups as a batch system makes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dev import job
from dev.live import Failed

SOURCE = Path(__file__).parents[2]


def test_a_job_is_named_as_by_oar():
    assert job.directory_name(1, "alice", 42) == "alice_42"
    assert job.directory_name(2, "root", 42) == "oar-u0-j42"
    with pytest.raises(Failed, match="there is no user nobody-at-all here"):
        job.directory_name(2, "nobody-at-all", 42)


def test_memory_of_a_cgroup_of_version_2_is_limited_in_a_tree_that_allows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "mounts", lambda kind: iter(()))
    path = tmp_path / "oar.slice/oar-u0-j42"
    path.mkdir(parents=True)
    job.limit_memory(path, 1 << 20)
    assert (path / "memory.max").read_text() == "1048576"
    for parent in (tmp_path, tmp_path / "oar.slice"):
        assert (parent / "cgroup.subtree_control").read_text() == "+memory"


def test_without_a_memory_controller_the_error_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "mounts", lambda kind: iter(()))
    with pytest.raises(Failed, match="leave out --memory"):
        job.limit_memory(tmp_path / "gone/oar-u0-j42", 1)


def test_a_job_needs_a_command(capsys):
    with pytest.raises(SystemExit) as ended:
        job.main(["42"])
    assert ended.value.code == 2 and "name the command" in capsys.readouterr().err


@pytest.mark.live
@pytest.mark.parametrize("ending", ["exit", "signal"])
def test_a_command_runs_as_a_job_and_leaves_nothing(root, tmp_path, monkeypatch, ending):
    name = f"colmet-test-{os.getpid()}"
    script = f"import sys; from dev import job; job.ROOTS = dict.fromkeys((1, 2), {name!r}); sys.exit(job.main())"
    inside = f"cat /proc/self/cgroup > {tmp_path}/cgroup; sleep 60 & [ {ending} = exit ] || wait; exit 3"
    process = subprocess.Popen([sys.executable, "-c", script, "--user", "root", "42", "sh", "-c", inside], cwd=SOURCE)
    until = time.monotonic() + 30
    while not (tmp_path / "cgroup").exists() or name not in (tmp_path / "cgroup").read_text():
        assert time.monotonic() < until and process.poll() in (None, 3)
        time.sleep(0.02)
    if ending == "signal":
        process.terminate()
    assert process.wait(30) == (3 if ending == "exit" else 143)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{name}"))
