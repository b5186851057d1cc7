"""The thread that joins what the batch system knows to the archive: late, repeated, failing and hanging answers."""

from __future__ import annotations

import logging
import os
import threading
import time

import pytest

from colmet.batch.answers import BatchError
from colmet.batch.slurm import SlurmRecords
from colmet.batch.systems import CANCELLED, DONE, FAILED, RUNNING, JobRecord, RecordSource, find_record_sources
from colmet.collector.backends.archive import ArchiveOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common.config.cli import Parser
from colmet.common.errors import ConfigError
from colmet.jobs.archive import joining
from colmet.jobs.archive.joining import Joiner
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveStore, Changes
from tests.jobs.test_archive_output import records
from tests.support.batch_commands import Commands
from tests.support.waiting import wait_for

NOW = 1_800_000_000


def record(job, started, ended=None, state=None, system="slurm", **fields):
    return JobRecord(job, system, str(job), state or (DONE if ended else RUNNING), started, ended, **fields)


class Source(RecordSource):
    """A batch system whose jobs a test sets."""

    name = "slurm"

    def __init__(self, jobs=()):
        super().__init__()
        self.jobs = list(jobs)
        self.asked = []
        self.late = {}  # records that `ended` does not have
        self.fails = None

    def running(self):
        if self.fails:
            raise self.fails
        return [one for one in self.jobs if one.ended is None]

    def ended(self, since, until):
        self.asked.append((since, until))
        return [one for one in self.jobs if one.ended is not None and since <= one.ended <= until]

    def named(self, jobs):
        self.asked.append(sorted(jobs))
        return [self.late[job] for job in jobs if job in self.late]


class Bed:
    """An archive, a batch system and a clock."""

    def __init__(self, path, source=None):
        self.path = str(path)
        self.source = source or Source()
        self.now = NOW
        self.monotonic = 0.0
        self.restart()

    def restart(self):
        self.joiner = self.joiner_of([self.source])

    def joiner_of(self, sources, **options):
        clocks = {"clock": lambda: self.now, "monotonic": lambda: self.monotonic}
        return Joiner(sources, lambda: ArchiveStore(self.path, writable=True), **clocks, **options)

    def write(self, *jobs, moves=()):
        store = ArchiveStore(self.path, writable=True)
        store.write(Changes((), jobs, {}, moves), None)
        store.close()

    def rows(self, *columns):
        with LocalArchive(self.path) as archive:
            wanted = ["job", "start", "state", *columns]
            return [tuple(row.values()) for row in archive.jobs(JobFilter(), wanted, descending=False, limit=99).rows]


@pytest.fixture
def bed(tmp_path):
    return Bed(tmp_path / "a.archive.sqlite")


def measured(job, start, last, running=False, **columns):
    return {
        "job": job,
        "start": start,
        "last": last,
        "is_running": int(running),
        "wall_s": float(last - start),
        **columns,
    }


def test_running_and_ended_jobs_get_what_the_batch_system_knows(bed):
    bed.write(measured(1, NOW - 90, NOW, running=True), measured(2, NOW - 95, NOW - 40))
    bed.source.jobs = [
        record(1, NOW - 91, name="sim", owner="ann", requested_memory=5),
        record(2, NOW - 96, NOW - 39, FAILED, exit_code=3, project="p", reason="FAILED"),
    ]
    bed.joiner.turn()
    assert bed.rows("name", "user", "project", "exit_code") == [
        (2, NOW - 95, "failed", None, None, "p", 3),
        (1, NOW - 90, "running", "sim", "ann", None, None),
    ]
    assert bed.joiner.counters() == {"batch_joined": 2, "batch_alone": 0, "batch_failures": 0, "batch_skipped": 0}
    bed.source.jobs[0] = record(1, NOW - 91, NOW + 50, CANCELLED)
    bed.now += 60
    bed.joiner.turn()
    assert bed.rows("name")[1] == (1, NOW - 90, "cancelled", "sim")


def test_after_an_outage_of_hours_and_a_restart_it_asks_from_where_it_was(bed):
    bed.joiner.turn()
    asked = NOW
    bed.restart()
    bed.now += 5 * 3600 + 100
    bed.source.asked.clear()
    bed.source.jobs = [record(n, NOW + 600 * n, NOW + 600 * n + 5) for n in range(30)]
    bed.joiner.turn()
    spans = [one for one in bed.source.asked if isinstance(one, tuple)]
    assert spans[0][0] == asked - joining.OVERLAP_S and spans[5][1] == bed.now and len(spans) == 7
    assert len(bed.rows()) == 30 and bed.joiner.counters()["batch_alone"] == 30
    bed.now += 30 * 86400
    bed.source.asked.clear()
    bed.restart()
    bed.joiner.turn()
    assert bed.source.asked[0][0] == bed.now - joining.BACK_S - joining.OVERLAP_S, "not further back than a week"


def test_a_record_that_comes_hours_later_is_found_by_number(bed):
    bed.write(*[measured(n, NOW - 9000 + n, NOW - 8000 + n) for n in range(1, 31)])
    bed.joiner.turn()
    assert {row[2] for row in bed.rows()} == {"ended"}
    bed.source.late = {n: record(n, NOW - 9000 + n, NOW - 7990 + n, exit_code=0) for n in range(1, 31)}
    for _ in range(joining.ALL_EVERY):
        bed.now += 600
        bed.monotonic += 601
        bed.joiner.turn()
    assert {row[2] for row in bed.rows()} == {"done"}
    bed.source.asked.clear()
    bed.monotonic += 3601
    bed.joiner.turn()
    assert not [one for one in bed.source.asked if isinstance(one, list)], "all is known: no job is asked for"


def test_accounts_that_come_an_hour_late_are_found_also_for_jobs_without_rows(bed):
    bed.joiner.turn()
    bed.now += 3000
    bed.joiner.turn()
    bed.source.jobs = [record(n, NOW + 10, NOW + 20) for n in range(30)]
    for _ in range(joining.ALL_EVERY):
        bed.now += 100
        bed.monotonic += 601
        bed.joiner.turn()
    assert len(bed.rows()) == 30


def test_a_job_that_the_batch_system_forgot_is_no_longer_running(bed):
    bed.write(measured(1, NOW - 90, NOW, running=True))
    bed.source.jobs = [record(1, NOW - 91, name="sim")]
    bed.joiner.turn()
    bed.write(measured(1, NOW - 90, NOW + 10))
    bed.source.jobs = []
    for _ in range(2):
        bed.now += 600
        bed.monotonic += 601
        bed.joiner.turn()
    assert bed.rows("name") == [(1, NOW - 90, "ended", "sim")]


def test_a_job_that_ended_during_an_outage_of_weeks_is_no_longer_running(bed):
    bed.write(measured(1, NOW - 90, NOW - 10))
    bed.source.jobs = [record(1, NOW - 91, name="sim")]
    bed.joiner.turn()
    assert bed.rows("name") == [(1, NOW - 90, "running", "sim")]
    bed.source.jobs = [record(1, NOW - 91, NOW + 60)]  # the batch system is not asked for ends of weeks ago
    bed.now += 20 * 86400
    bed.restart()
    bed.joiner.turn()
    assert bed.rows("name") == [(1, NOW - 90, "ended", "sim")]


def test_rows_that_come_after_the_record_join_it_in_the_same_transaction(bed):
    bed.source.jobs = [record(1, NOW - 91, NOW - 90, name="short")]
    bed.joiner.turn()
    assert bed.rows("name", "wall_s") == [(1, NOW - 91, "done", "short", 1.0)]
    bed.write(measured(1, NOW - 90, NOW - 90, cpu_s=0.5))
    assert bed.rows("name", "cpu_s") == [(1, NOW - 90, "done", "short", 0.5)]
    bed.write(measured(1, NOW - 92, NOW - 90, cpu_s=0.6), moves=[(1, NOW - 90, NOW - 92)])
    assert bed.rows("name", "cpu_s") == [(1, NOW - 92, "done", "short", 0.6)]


def test_lack_of_memory_is_seen_by_the_kernel_where_the_batch_system_has_no_word_for_it(bed):
    bed.write(*[measured(n, NOW - 90, NOW - 40, oom_kills=n % 2) for n in (1, 2, 3)])
    store = ArchiveStore(bed.path, writable=True)
    store.join("oar", [record(n, NOW - 90, NOW - 40, FAILED, "oar", exit_signal=9) for n in (1, 2)])
    store.join("slurm", [record(3, NOW - 90, NOW - 40, FAILED)])
    store.close()
    assert [row[2] for row in sorted(bed.rows())] == ["out_of_memory", "failed", "failed"]


def test_failures_are_counted_logged_seldom_and_retried_ever_less_often(bed, caplog):
    bed.source.fails = BatchError("squeue: returned 1: no controller")
    caplog.set_level(logging.INFO)
    pauses = []
    for _ in range(10):
        bed.joiner.turn()
        pauses.append(bed.joiner._backoffs[0].left_s())
        bed.joiner.turn()  # not yet due
        bed.monotonic += pauses[-1] + 1
    assert pauses[:4] == [60, 120, 240, 480] and pauses[-1] == 3600
    assert bed.joiner.counters()["batch_failures"] == 10
    (state,) = bed.joiner.states()
    assert (state["name"], state["why"]) == ("slurm", "squeue: returned 1: no controller") and state["failing_s"] > 3600
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 2 and "no controller" in said[0] and caplog.records[0].levelno == logging.WARNING
    bed.source.fails = None
    bed.joiner.turn()
    assert "answers again" in caplog.records[-1].getMessage() and bed.joiner.states()[0]["why"] == ""


def test_a_defect_ends_neither_the_thread_nor_other_batch_systems(bed, caplog):
    other = Source([record(5, NOW - 20, NOW - 10)])
    other.name = "oar"
    bed.joiner = bed.joiner_of([bed.source, other], is_named=False)
    bed.source.fails = ZeroDivisionError("x")
    bed.joiner.turn()
    assert [row[0] for row in bed.rows()] == [5]
    assert caplog.records[0].levelno == logging.ERROR and "ZeroDivisionError" in caplog.text


def test_a_locked_archive_is_a_failure_and_loses_nothing(bed, monkeypatch):
    monkeypatch.setattr("colmet.jobs.archive.store.BUSY_S", 0.05)
    bed.source.jobs = [record(1, NOW - 20, NOW - 10)]
    store = ArchiveStore(bed.path, writable=True)
    store.database.execute("BEGIN IMMEDIATE")
    bed.joiner.turn()
    assert bed.joiner.counters()["batch_failures"] == 1
    store.database.execute("ROLLBACK")
    store.close()
    bed.monotonic += 61
    bed.joiner.turn()
    assert len(bed.rows()) == 1


def test_a_long_answer_is_written_in_parts(bed, monkeypatch):
    monkeypatch.setattr(joining, "AT_ONCE", 7)
    bed.source.jobs = [record(n, NOW - 20, NOW - 10) for n in range(1, 31)]
    bed.joiner.turn()
    assert len(bed.rows()) == 30


def test_a_command_that_hangs_reaches_its_deadline_and_does_not_hold_up_the_end(tmp_path, monkeypatch):
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(["squeue", None], slow_s=600)
    path = str(tmp_path / "a.sqlite")
    monkeypatch.setattr("colmet.batch.answers.ask.__defaults__", (0.2, None))
    joiner = Joiner([SlurmRecords()], lambda: ArchiveStore(path, writable=True), 0.01)
    joiner.turn()
    assert joiner.counters()["batch_failures"] == 1
    monkeypatch.setattr("colmet.batch.answers.ask.__defaults__", (600.0, None))
    joiner = Joiner([SlurmRecords()], lambda: ArchiveStore(path, writable=True), 0.01)
    joiner.start()
    wait_for(lambda: len(commands.asked("squeue")) == 2)
    began = time.monotonic()
    joiner.close()
    assert time.monotonic() - began < joining.STOP_S
    assert not any(one.name == "batch-system" for one in threading.enumerate())


def output_of(words):
    parser = Parser(prog="x")
    ArchiveOutput.add_options(parser)
    parser.add_argument("--hdf5-filepath")
    parser.add_argument("--sample-period", type=float, default=5.0)
    return ArchiveOutput.from_options(parser.parse_args(words))


def test_the_output_joins_and_shows_its_counters(tmp_path, monkeypatch):
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(["squeue", None])
    line = f"7|7|ann|p|q|{NOW}|{int(time.time()) - 60}|{int(time.time()) - 50}|COMPLETED|0:0|5|7|cpu=1|cpu=1|n1|sleep"
    commands.answers(["sacct", None], [line.split("|")])
    path = tmp_path / "a.sqlite"
    output = output_of(["--archive", str(path), "--archive-batch", "slurm", "--sample-period", "0.005"])
    output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 1))
    output.recover()
    wait_for(lambda: output.counters()["batch_alone"] == 1)
    wait_for(lambda: len(commands.asked("sacct")) >= 3)
    output.close()
    with LocalArchive(str(path)) as archive:
        (row,) = archive.jobs(JobFilter(), ["job", "state", "user", "wall_s"]).rows
    assert row == {"job": 7, "state": "done", "user": "ann", "wall_s": 10.0}


def test_without_a_batch_system_nothing_is_asked(tmp_path, monkeypatch, caplog):
    Commands(tmp_path / "bin", monkeypatch)
    monkeypatch.delenv("SGE_ROOT", raising=False)
    output = output_of(["--archive", str(tmp_path / "a.sqlite")])
    output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 1))
    output.recover()
    assert not any(one.name == "batch-system" for one in threading.enumerate())
    assert output.counters()["batch_failures"] == 0
    output.close()
    assert not caplog.records


def test_batch_systems_are_those_named_or_those_that_are_here(tmp_path, monkeypatch):
    commands = Commands(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    monkeypatch.delenv("SGE_CELL", raising=False)

    def names(text):
        sources = find_record_sources(text)
        for one in sources:
            one.close()
        return [(one.name, type(one).__name__) for one in sources]

    assert names("auto") == [] == names("none") == names("")
    commands.answers(["squeue", None])
    commands.answers(["oarstat", None])
    os.makedirs(tmp_path / "default/common")
    (tmp_path / "default/common/accounting").write_text("")
    assert [name for name, _ in names("auto")] == ["gridengine", "oar", "slurm"]
    assert names("oar=http://head/oarapi,slurm") == [("oar", "OarRestRecords"), ("slurm", "SlurmRecords")]
    assert names("oar=http://head/oarapi,auto")[0] == ("oar", "OarRestRecords")
    for bad in ("pbs", "slurm=x", "oar=x", "oar=ftp://x"):
        with pytest.raises(ConfigError, match=r"batch system 'pbs' is not known|batch system 'slurm=x'|not a URL"):
            find_record_sources(bad)
    with pytest.raises(ConfigError, match="--archive-batch: batch system 'pbs' is not known; there are auto, none"):
        output_of(["--archive", "x", "--archive-batch", "pbs"])


def test_rows_are_written_while_a_command_hangs(tmp_path, monkeypatch):
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(["squeue", None], slow_s=600)
    output = output_of(["--archive", str(tmp_path / "a.sqlite"), "--archive-batch", "slurm"])
    output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 1))
    output.recover()
    wait_for(lambda: commands.asked("squeue"))
    began = time.monotonic()
    output.write(records(1, 31))
    output.close()
    assert time.monotonic() - began < joining.STOP_S
    with LocalArchive(str(tmp_path / "a.sqlite")) as archive:
        assert [row["cpu_s"] for row in archive.jobs(JobFilter(), ["cpu_s"]).rows] == [150]
