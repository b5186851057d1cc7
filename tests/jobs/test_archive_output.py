"""The output `archive`: its own position, full disks, damaged files, other journals."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3

import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.archive import ArchiveOutput
from colmet.collector.journal.output_state import OutputState
from colmet.collector.main import full_parser
from colmet.common.config.cli import Parser
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.jobs.archive.local import LocalArchive, is_shared, path_of
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveStore
from tests.jobs.test_fold import tick
from tests.support.archive_database import ArchiveDatabase
from tests.support.waiting import wait_for


def records(first, end, journal_first=1):
    return [JournalRecord(n, tick(n).time_ns + 10**9, (tick(n + 1 - journal_first),)) for n in range(first, end)]


def opened(path, tmp_path, journal="ab" * 8, oldest=1, end=1):
    output = ArchiveOutput(str(path))
    output.open(OutputState(str(tmp_path / "archive.json"), journal, oldest, end))
    output.recover()
    return output


def cpu_of(path):
    with LocalArchive(str(path)) as archive:
        return [round(row["cpu_s"], 6) for row in archive.jobs(JobFilter(), ["cpu_s"]).rows]


def test_a_kill_after_the_transaction_repeats_no_row(tmp_path):
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    before = (tmp_path / "archive.json").read_text()
    output.write(records(11, 21))
    output.close()
    assert cpu_of(path) == [100]
    (tmp_path / "archive.json").write_text(before)  # killed before the state was saved
    output = opened(path, tmp_path)
    state = output._state
    assert state.position == 21, "the archive's own position"
    output.write(records(11, 26))
    output.close()
    assert cpu_of(path) == [125]


def test_a_new_archive_begins_with_the_next_record_and_another_journal_continues(tmp_path):
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    output.close()
    os.unlink(tmp_path / "archive.json")
    output = opened(path, tmp_path, "cd" * 8, 100, 100)
    assert output._state.position == 100
    output.write([JournalRecord(100 + n, tick(11 + n).time_ns, (tick(11 + n),)) for n in range(5)])
    output.close()
    assert cpu_of(path) == [75]


@pytest.mark.parametrize("damage", ["text", "middle"])
def test_a_damaged_archive_is_set_aside_and_a_new_one_started(tmp_path, caplog, damage):
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    output.close()
    content = path.read_bytes()
    path.write_bytes(b"a text of another program" * 400 if damage == "text" else content[:100] + b"\xff" * 8000)
    output = ArchiveOutput(str(path))
    output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 11))
    with pytest.raises(OutputUnavailable):  # by the first step that reads the damaged part
        output.write(records(11, 12))
    output.recover()
    output.write(records(11, 31))  # a minute and more, as the first ten may come yet
    assert output.counters()["files_damaged"] == 1 and "colmet archive rebuild" not in path.read_text("latin-1")
    output.close()
    assert any("set aside" in record.getMessage() for record in caplog.records)
    assert len(list(tmp_path.glob("a.sqlite.damaged.*"))) >= 1 and cpu_of(path) == [150]


def test_a_full_disk_loses_nothing(tmp_path):
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limit[1]))
    try:
        with pytest.raises(OutputUnavailable, match=r"a\.sqlite"):
            output.write(records(11, 21))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    output.recover()
    output.write(records(11, 21))
    output.close()
    assert cpu_of(path) == [100]


def test_a_reader_with_a_lock_delays_the_output_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("colmet.jobs.archive.store.BUSY_S", 0.05)
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    counts = output.counters()
    assert counts["jobs"] == 1
    with pytest.raises(OutputUnavailable, match="locked"):
        output.write(records(11, 21))
    assert output.counters()["jobs"] == 1
    other.execute("ROLLBACK")
    other.close()
    output.recover()
    assert {**output.counters(), "size_bytes": counts["size_bytes"]} == counts
    output.write(records(11, 21))
    output.close()
    assert cpu_of(path) == [100]


def test_batches_that_wait_for_an_earlier_one_are_read_again_after_a_failed_write(tmp_path, monkeypatch):
    monkeypatch.setattr("colmet.jobs.archive.store.BUSY_S", 0.05)
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    late, *others = records(11, 18)
    arrived = [one._replace(number=number) for number, one in enumerate([*others, late], 11)]
    output.write(arrived[:4])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputUnavailable, match="locked"):
            output.write(arrived[4:5])
    with pytest.raises(OutputUnavailable, match="continued from its last transaction"):
        output.write(arrived[4:5])
    position = output._state.position
    assert position == 11, "the first one that waited"
    output.write(arrived[position - 11 :])
    output.close()
    assert cpu_of(path) == [85]


def test_waiting_batches_are_read_again_in_any_number_of_writes_after_a_restart(tmp_path):
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    late, *others = records(11, 18)
    arrived = [one._replace(number=number) for number, one in enumerate([*others, late], 11)]
    output.write([*records(1, 11), *arrived[:5]])
    output.close()
    output = opened(path, tmp_path)
    position = output._state.position
    while position < 18:
        output.write(arrived[position - 11 :][:2])
        assert output._state.position == position + min(2, 18 - position)
        position = output._state.position
    output.close()
    assert cpu_of(path) == [85]


def test_a_clock_that_was_ahead_delays_no_waiting_batch_and_no_end_of_a_job(tmp_path):
    output = opened(tmp_path / "a.sqlite", tmp_path)
    month_ns = 30 * 86400 * 10**9
    ahead = [one._replace(received_ns=one.received_ns + month_ns) for one in records(1, 5)]
    output.write([*ahead[:2], *ahead[3:], *records(5, 50)])
    assert output.counters()["held"] == 0, "number 3 never comes"
    output.close()


@pytest.mark.parametrize("where", ["new archive", "other journal", "same journal"])
def test_a_defect_in_the_fold_goes_back_to_the_last_transaction(tmp_path, monkeypatch, where):
    path = tmp_path / "a.sqlite"
    first = 1 if where == "new archive" else 11
    output = opened(path, tmp_path, "ab" * 8 if first > 1 else "cd" * 8)
    if first > 1:
        output.write(records(1, 11))
    if where == "other journal":
        output.close()
        os.unlink(tmp_path / "archive.json")
        output = opened(path, tmp_path, "cd" * 8)
    at = 11 if where == "same journal" else 1
    some = [JournalRecord(at + n, tick(first + n).time_ns, (tick(first + n),)) for n in range(5)]
    take = output._archiver.take

    def defect(of):
        take(of)
        raise ZeroDivisionError

    monkeypatch.setattr(output._archiver, "take", defect)
    with pytest.raises(ZeroDivisionError):
        output.write(some)
    monkeypatch.undo()
    output.write(some)
    output.close()
    assert cpu_of(path) == [5 * (first + 4)]


def test_the_option_is_checked(tmp_path):
    parser = Parser(prog="x")
    ArchiveOutput.add_options(parser)
    parser.add_argument("--hdf5-filepath")
    parser.add_argument("--sample-period", type=float, default=5.0)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file/a", tmp_path):
        output = ArchiveOutput.from_options(parser.parse_args(["--archive", str(path)]))
        with pytest.raises(ConfigError, match="--archive"):
            output.check("")


def test_readers_see_the_archive_while_it_is_written(tmp_path):
    path = tmp_path / "a.sqlite"
    output = opened(path, tmp_path)
    output.write(records(1, 11))
    with LocalArchive(str(path)) as archive:
        assert archive.jobs(JobFilter()).rows[0]["state"] == "running"
        output.write(records(11, 41))  # two minutes and more
        assert archive.jobs(JobFilter()).rows[0]["cpu_s"] == 200
    assert oct(path.stat().st_mode & 0o777) == "0o640"
    output.close()
    with contextlib.closing(ArchiveStore(str(path))) as store:
        assert store.position.number == 41


def test_another_collector_waits_for_the_archive(tmp_path):
    path = str(tmp_path / "a.sqlite")
    first, second = ArchiveOutput(path), ArchiveOutput(path)
    for output in (first, second):
        output.open(OutputState("", "ab" * 8, 0, 0))
    first.recover()
    with pytest.raises(OutputUnavailable, match="another process writes it"):
        second.recover()
    first.recover()  # again, as after a failure
    first.close()
    second.recover()
    second.close()


def test_old_summaries_are_removed_while_rows_are_written(tmp_path):
    path = tmp_path / "a.sqlite"
    output = ArchiveOutput(str(path), keep_s=86400)
    output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 1))
    output.recover()
    output.write(records(1, 11))  # of 2023; the job may go on
    assert output.counters()["jobs_removed"] == 0 and cpu_of(path) == [50]
    later = [tick(n, jobs=()) for n in (300, 600)]  # it has ended
    output._expiry._due_at = 0.0
    for n, batch in enumerate(later):
        output.write([JournalRecord(11 + n, batch.time_ns + 10**9, (batch._replace(seq=11 + n),))])
        output._expiry._due_at = 0.0
    output.write([JournalRecord(13, tick(601).time_ns, (tick(601, jobs=())._replace(seq=13),))])
    assert output.counters()["jobs_removed"] == 1 and cpu_of(path) == []
    output.close()


def test_all_counters_are_described_as_metrics(tmp_path):
    output = opened(tmp_path / "a.sqlite", tmp_path)
    output.write(records(1, 11))
    counters = output.counters()
    assert counters.keys() <= ArchiveOutput.described.keys()
    assert counters["size_bytes"] > 0 and counters["open"] == 1
    output.close()


def options_of(*words):
    return full_parser().parse_args([*words, "--archive-batch", "none"])


def test_with_a_database_the_summaries_are_there_too_and_the_file_is_in_the_journal(tmp_path):
    database = ArchiveDatabase()
    journal = tmp_path / "journal"
    journal.mkdir()
    output = ArchiveOutput.from_options(options_of("--elastic-host", database.url, "--journal-dir", str(journal)))
    assert output.path == str(journal / "archive.sqlite")
    try:
        database.item = lambda action, document: (503, "unavailable_shards_exception")
        output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 1))
        output.recover()
        output.write(records(1, 11))
        wait_for(lambda: output.counters()["share_failures"])
        assert output.counters()["unshared"] == 1
        output.close()  # a last try, and the key stays
        database.item = lambda action, document: None
        output.open(OutputState(str(tmp_path / "archive.json"), "ab" * 8, 1, 11))
        output.recover()
        output.write(records(11, 21))
        output.close()
        (job,) = database.stored["colmet_archive-jobs"].values()
        assert [job[0]["cpu_s"]] == cpu_of(output.path)
    finally:
        output.close()
        database.close()


@pytest.mark.parametrize(
    ("words", "path", "shared"),
    [
        ([], "", False),
        (["--hdf5-filepath", "/x/c"], "/x/c.archive.sqlite", False),
        (["--hdf5-filepath", "/x/c", "--archive", ""], "", False),
        (["--hdf5-filepath", "/x/c", "--elastic-host", "http://h"], "/x/c.archive.sqlite", True),
        (
            ["--hdf5-filepath", "/x/c", "--elastic-host", "http://h", "--no-shared-archive"],
            "/x/c.archive.sqlite",
            False,
        ),
        (["--elastic-host", "http://h", "--journal-dir", "/x/j"], "/x/j/archive.sqlite", True),
        (["--elastic-host", "http://h", "--archive", "/x/a"], "/x/a", True),
        (["--elastic-host", "http://h"], "", False),
        (["--elastic-host", "http://h", "--journal-dir", "/x/j", "--archive", ""], "", False),
        (["--enable-stdout-backend", "--journal-dir", "/x/j"], "", False),
    ],
)
def test_where_the_archive_is(words, path, shared):
    options = options_of(*words)
    assert (path_of(options), is_shared(options)) == (path, shared)
    output = ArchiveOutput.from_options(options)
    assert (output is not None) == bool(path) and (not path or output.path == path)
