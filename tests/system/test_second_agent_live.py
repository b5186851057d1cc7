"""Two agents on one machine: rows of one of them are stored, and status warns."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from colmet.common.daemon.checks import Level
from colmet.common.daemon.control import ask
from colmet.common.daemon.status_checks import judge
from colmet.common.errors import ColmetError
from colmet.jobs.report.rows import gather
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import RowQuery
from dev.live import NS, Daemons

pytestmark = [pytest.mark.live, pytest.mark.slow]

JOB = 4343
HOST = socket.gethostname()
WORK = """
import sys, time
sys.stdin.readline()
while time.process_time() < 3.0:
    sum(range(1000))
print("done", flush=True)
sys.stdin.readline()
"""


def eventually(found, timeout_s=60):
    """What `found` gives, once it is something."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            value = found()
        except ColmetError:  # not there yet
            value = None
        if value:
            return value
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.parametrize("wire", ["v1", "colmet06"])
def test_rows_of_one_agent_are_stored_and_those_of_the_other_wait(tmp_path, root_directory, wire):
    control, other_control = str(tmp_path / "c.sock"), str(tmp_path / "n.sock")
    options = ["--cpuset_rootpath", str(root_directory.path), "-s", "0.5", "--control-socket", ""]
    output = ["--hdf5-filepath", str(tmp_path / "x"), "-s", "0.1", "--control-socket", control]
    daemons = Daemons(tmp_path, options, output)
    other = None
    try:
        job = root_directory.job(f"alice_{JOB}")
        process = job.start([sys.executable, "-S", "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        daemons.wait_for_row(lambda row: row.get("job_id") == JOB)
        first = daemons.node
        daemons._node_options = [*options[:-1], other_control, "--wire", wire]
        daemons.start_node()
        other, daemons.node = daemons.node, first

        def status():
            return ask(control, "collector", {"command": "status", "senders": -1})

        shared = eventually(lambda: (found := status())["senders"]["shared_names"] and found)
        assert len(shared["senders"]["shared_names"][HOST]) == 2
        verdict = judge(shared, 60, 300)
        assert verdict.level == Level.WARN and f"two machines send as {HOST}" in verdict.line("collector")
        if wire == "v1":
            assert eventually(lambda: ask(other_control, "node", {"command": "status"})["spool"]["held"] > 2)

        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        used_s = job.cpu_ns() / NS

        def report():
            with Hdf5History([str(tmp_path / "x")]) as history:
                found = gather(history, JobInterval(JOB), time.time())
                return found if found.cpu.used_s >= 0.97 * used_s else None

        assert eventually(report).cpu.used_s == pytest.approx(used_s, rel=0.03)
        with Hdf5History([str(tmp_path / "x")]) as history:
            (series,) = history.read(RowQuery(JOB, "taskstats_default", ["cpu_total"]))
        assert series.host == HOST and (np.diff(series.values("cpu_total")) >= 0).all()
        process.stdin.write("end\n")
        process.stdin.flush()
        process.wait(timeout=30)
    finally:
        if other is not None:
            other.send_signal(signal.SIGTERM)
            other.wait(timeout=15)
        daemons.stop()
