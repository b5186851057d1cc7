"""A collector that asks a batch system, killed again and again while it joins records to the archive."""

from __future__ import annotations

import os
import signal
import sqlite3
import time

import pytest

from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from tests.support.batch_commands import Commands
from tests.support.daemons import start, start_collector, uri  # noqa: F401 - fixtures
from tests.support.waiting import wait_for

JOBS, ROUNDS = 30, 10
pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.endurance]


ENDS = (
    *(("COMPLETED|0:0", "done"), ("FAILED|3:0", "failed"), ("FAILED|0:11", "failed"), ("TIMEOUT|0:0", "timeout")),
    *(("OUT_OF_MEMORY|0:125", "out_of_memory"), ("CANCELLED by 7|0:0", "cancelled")),
)


def accounts(now, count):
    lines = []
    for n in range(1, count + 1):
        times = f"{now - 90}|{now - 60 - n}|{now - 20 + n // 10}"
        lines.append(f"{n}|{n}|ann|physics|p{n % 3}|{times}|{ENDS[n % 6][0]}|5|7|cpu=1,mem=1G||n1|job {n}".split("|"))
    return lines


def jobs_of(path):
    with LocalArchive(path) as archive:
        return archive.jobs(JobFilter(), ["job", "name", "state", "exit_code", "exit_signal"], limit=999).rows


def test_each_job_has_one_summary_after_kills(start_collector, tmp_path, monkeypatch):  # noqa: F811
    path = str(tmp_path / "a.sqlite")
    system = os.environ["PATH"]
    commands = Commands(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{system}")
    commands.answers(["squeue", None])
    now = int(time.time())
    for n in range(ROUNDS):
        commands.answers(["sacct", None], accounts(now, JOBS * (n + 1) // ROUNDS))
        collector = start_collector(
            *("--journal-dir", str(tmp_path / "journal"), "--archive", path, "--archive-batch", "slurm"),
            *("-s", "0.02", "--enable-stdout-backend"),
        )
        asked = len(commands.asked("sacct"))
        wait_for(lambda asked=asked: len(commands.asked("sacct")) > asked)
        time.sleep(0.01 * n)  # a kill at any moment
        collector.stop(signal.SIGKILL)
    collector = start_collector(
        *("--journal-dir", str(tmp_path / "journal"), "--archive", path, "--archive-batch", "slurm"),
        *("-s", "0.02", "--enable-stdout-backend"),
    )
    wait_for(lambda: len(jobs_of(path)) == JOBS)
    assert collector.stop()[0] == 0
    found = {row["job"]: row for row in jobs_of(path)}
    assert len(found) == JOBS == len(jobs_of(path))
    states = {
        n: ("done", "failed", "failed", "timeout", "out_of_memory", "cancelled")[n % 6] for n in range(1, JOBS + 1)
    }
    assert {job: row["state"] for job, row in found.items()} == states
    assert {row["exit_code"] for job, row in found.items() if job % 6 == 1} == {3}
    database = sqlite3.connect(path)
    (until,) = database.execute("SELECT until FROM asked WHERE system = 'slurm'").fetchone()
    database.close()
    assert now <= until <= time.time()
