"""The report of a real job under the real daemons, against the kernel's own figure for the job's cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from colmet.common.errors import ConfigError
from colmet.jobs.report.rows import gather
from colmet.stored.gap_finder import LATE
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.job_rows import JobInterval
from dev.live import NS, Daemons, Failed, JobRoot
from tests.support.place import skip_refused

pytestmark = [pytest.mark.live, pytest.mark.slow]

JOB = 4243
# A second of its own, short processes, and a file; it ends at a line on its input.
WORK = """
import os, sys, time
while time.process_time() < 1.0:
    sum(range(1000))
for _ in range(150):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
with open(sys.argv[1], "wb") as file:
    file.write(os.urandom(8 << 20))
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def root_directory(root):
    try:
        made = JobRoot(f"colmet-test-{os.getpid()}-{time.monotonic_ns()}")
    except Failed as err:
        skip_refused(str(err))
    yield made
    made.close()


@pytest.fixture
def daemons(tmp_path, root_directory):
    node = ["--cpuset_rootpath", str(root_directory.path), "-s", "0.5", "--enable-jobproc"]
    made = Daemons(tmp_path, node, ["--hdf5-filepath", str(tmp_path / "x"), "-s", "0.1"])
    yield made
    made.stop()


def report(tmp_path):
    """None before there is anything of the job."""
    try:
        with Hdf5History([str(tmp_path / "x")]) as history:
            return gather(history, JobInterval(JOB), time.time())
    except ConfigError:
        return None


def wait_for(tmp_path, holds, timeout_s=60):
    until = time.monotonic() + timeout_s
    while not ((found := report(tmp_path)) and holds(found)):
        assert time.monotonic() < until, found
        time.sleep(0.2)
    return found


def test_the_cpu_time_is_that_of_the_cgroup(tmp_path, root_directory, daemons):
    job = root_directory.job(f"alice_{JOB}")
    process = job.start(
        [sys.executable, "-S", "-c", WORK, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == "done\n"
    used_s = job.cpu_ns() / NS
    found = wait_for(tmp_path, lambda one: one.cpu.used_s >= 0.97 * used_s)
    assert found.state == "running"
    process.stdin.write("\n")
    process.stdin.flush()
    process.wait(timeout=30)
    used_s = job.cpu_ns() / NS
    root_directory.end(job)

    found = wait_for(tmp_path, lambda one: one.state == "ended")
    assert found.cpu.used_s == pytest.approx(used_s, rel=0.03)
    assert found.io.written_bytes >= 8 << 20
    assert (found.user, found.cpu.source) == ("alice", "cgroup")
    assert found.cpu.cpus and found.memory.peak_bytes
    assert found.completeness.method == "ledger"
    assert {gap.why for gap in found.completeness.gaps} <= {LATE}  # on a busy machine the node leaves samples out

    command = [sys.executable, "-m", "colmet.commands.colmet", "report", str(JOB), "--hdf5", str(tmp_path / "x")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "80"})
    assert ran.returncode == 0 and not ran.stderr
    assert f"Job {JOB} of alice" in ran.stdout and max(map(len, ran.stdout.splitlines())) <= 80
