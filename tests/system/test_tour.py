"""A guided tour: one job, from the kernel to each place where somebody reads its figures."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import urllib.request

import pytest
import tables

from colmet.commands import colmet
from dev.live import Failed, JobRoot, ListedRoot
from tests.support.waiting import free_port, wait_for

pytestmark = pytest.mark.live

# What the job does: 3 MB written, 0.8 s of CPU time, then nothing, until there is a second file.
PROGRAM = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(file, bytes(3_000_000))
while time.process_time() < 0.8: pass
print("ready", flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.2)
"""


@pytest.fixture
def job_root(tmp_path):
    """Where jobs are made as by a batch system: cgroups, or lists of processes where no cgroup can be made."""
    try:
        root = JobRoot(f"colmet-tour-{os.getpid()}")
    except Failed:
        root = ListedRoot(tmp_path / "jobs")
    with contextlib.closing(root):
        yield root


@pytest.fixture
def ask(capsys):
    """Run a command, and return what it prints as JSON."""

    def run(*words):
        assert colmet.main([*map(str, words), "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


def test_job_is_the_same_in_kernel_hdf5_archive_report_page_and_status(
    start, start_collector, uri, job_root, ask, tmp_path
):
    # A collector writes HDF5 files and the archive of jobs, and serves the page.
    hdf5, archive, control = (tmp_path / name for name in ("rows.hdf5", "archive", "collector.sock"))
    page = free_port()
    collector = start_collector(
        *("--hdf5-filepath", str(hdf5), "--archive", str(archive), "--archive-batch", "none"),
        *("--http-listen", str(page), "--http-open", "--control-socket", str(control), "-s", "0.1"),
    )

    # A node finds a job by its cgroup, whose name is USER_NUMBER, and measures it five times a second.
    node = start(
        *("colmet.node.main", "--zeromq-uri", uri, "-s", "0.2", "--enable-jobproc"),
        *("--cpuset_rootpath", f"{job_root.path}/"),
    )
    job = job_root.job("alice_4242")
    process = job.start(
        [sys.executable, "-S", "-c", PROGRAM, str(tmp_path / "output"), str(tmp_path / "end")], stdout=-1
    )
    node.said("job started job=4242 user=alice")
    assert process.stdout.readline() == "ready\n"

    # The job appears on the page while it runs, in each sample with what it has used so far.
    def fetch(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)

    def is_on_page():
        with contextlib.suppress(OSError):
            return fetch("jobs?state=running")["total"] == 1

    wait_for(is_on_page)
    time.sleep(1)

    # The job ends, and its cgroup goes; the kernel's own count of its CPU time is what all figures are compared with.
    (tmp_path / "end").touch()
    job.wait()
    kernel_s = job.cpu_ns() / 1e9
    job_root.end(job)
    node.said("job ended job=4242")

    # The archive has a summary of the job soon after.
    wait_for(lambda: fetch("archive/jobs?state=ended")["total"] == 1)
    (summary,) = ask("jobs", "--all-users", "--archive", archive)["jobs"]
    # The table of cgroups names a job's user; a list of processes has none.
    user = "alice" if isinstance(job_root, JobRoot) else None
    assert (summary["job"], summary["user"]) == (4242, user)

    # The page and the report have the same figures, from the archive and from the rows.
    shown = fetch("jobs/4242/report")
    rows = ask("report", 4242, "--hdf5", hdf5)
    archived = ask("report", 4242, "--archive", archive, "--hdf5", tmp_path / "no.hdf5")
    for report in (shown, rows, archived):
        assert (report["user"] or None) == user
        assert report["cpu"]["used_s"] == pytest.approx(kernel_s, rel=0.05, abs=0.05)
        assert report["samples"] == rows["samples"] >= 3

    # Whoever asks the collector learns that nothing was lost; a batch that comes after the next one is missing so long.
    def lost():
        counts = ask("status", "collector", "--control-socket", control)["last_hour"]
        return counts["missing_batches"], counts["refused_messages"], counts["lost_records"]

    wait_for(lambda: lost() == (0, 0, 0))

    # After the end of both daemons, any program reads the files: here PyTables, as sites do today.
    assert node.stop()[0] == 0, node.log.read_text()
    assert collector.stop()[0] == 0, collector.log.read_text()
    with tables.open_file(str(hdf5)) as file:
        assert {group._v_name for group in file.list_nodes("/")} == {"job_0", "job_4242"}
        last = file.get_node("/job_4242/jobprocstats_default")[-1]
        assert last["hostname"].decode() == socket.gethostname()
        # The shell that started the job wrote its number to the cgroups, beside what the job's program wrote.
        assert 3_000_000 <= last["wchar"] < 3_000_030
