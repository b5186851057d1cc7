"""The file of the job archive: transactions, readers, and files of other programs."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3

import pytest

from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, Changes, Position
from colmet.jobs.columns import HOST_COLUMNS, JOB_COLUMNS, MEASURED
from tests.support.other_user import in_child

HOST = {"job": 7, "host": "n1", "start": 100, "last": 160, "cpu_s": 1.5, "memory_peak": 1 << 40, "footprint": b"\0\1"}
JOB = {"job": 7, "start": 100, "last": 160, "cpu_s": 1.5, "advice": "[]"}


def changes(**of):
    return Changes(**{"hosts": (), "jobs": (), "folds": {}, **of})


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a b#c.archive.sqlite")


def test_a_transaction_writes_summaries_folds_and_the_position(path):
    store = ArchiveStore(path, writable=True)
    assert store.position is None and store.folds() == {}
    store.write(changes(hosts=[HOST], jobs=[JOB], folds={(7, "n1", 100): b"state"}), Position("ab" * 8, 12))
    store.close()
    store = ArchiveStore(path)
    assert store.position == Position("ab" * 8, 12) and store.folds() == {(7, "n1", 100): b"state"}
    (host,) = store.hosts_of(7)
    assert {name: host[name] for name in HOST} == HOST and host["user_s"] is None
    assert set(host) == set(HOST_COLUMNS)
    store.close()


def test_a_later_summary_replaces_the_measured_values_and_keeps_those_of_the_batch_system(path):
    store = ArchiveStore(path, writable=True)
    store.write(changes(jobs=[JOB]), None)
    store.database.execute("UPDATE jobs SET name = 'sleep' WHERE job = 7")
    store.write(changes(jobs=[{**JOB, "cpu_s": 2.0}], folds={(7, "n1", 100): None}), None)
    row = store.database.execute("SELECT * FROM jobs").fetchone()
    assert (row["cpu_s"], row["name"]) == (2.0, "sleep")
    store.close()


def test_a_failed_transaction_changes_nothing(path):
    store = ArchiveStore(path, writable=True)
    with pytest.raises(OutputUnavailable, match="cannot write"):
        store.write(changes(jobs=[JOB, {"job": 8}]), Position("ab" * 8, 12))  # the second one has no start
    assert store.position is None
    assert not store.database.execute("SELECT * FROM jobs").fetchall()
    store.close()


@pytest.mark.parametrize("content", [None, b"not a database, but a text of another program" * 40, b""])
def test_a_missing_or_foreign_file_is_refused(path, content):
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    with pytest.raises(ArchiveError, match="archive of colmet-collector"):
        ArchiveStore(path)


def test_a_file_of_a_later_version_is_refused(path):
    ArchiveStore(path, writable=True).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA user_version = 99")
    for writable in (True, False):
        with pytest.raises(ArchiveError, match="later Colmet"):
            ArchiveStore(path, writable)


@pytest.mark.parametrize(
    "jobs", [1, 60], ids=["fails at the commit", "fails before, and SQLite rolls it back by itself"]
)
def test_a_full_disk_is_named_and_changes_nothing(path, jobs):
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        many = [{**JOB, "job": n, "footprint": os.urandom(200_000)} for n in range(jobs)]
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 20_000, limit[1]))
        try:
            with pytest.raises(OutputUnavailable, match="disk"):
                store.write(changes(jobs=many), Position("ab" * 8, 12))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert store.position is None and not store.measured_starts(0)
        store.write(changes(jobs=many), Position("ab" * 8, 12))
        assert store.measured_starts(0) == [JOB["start"]]


def test_every_column_has_a_sentence_and_a_name_of_its_own():
    assert len(JOB_COLUMNS) == len({*JOB_COLUMNS}) and {column.name for column in MEASURED} < set(HOST_COLUMNS)
    assert all(column.help.endswith(".") for column in JOB_COLUMNS.values())


@pytest.mark.usefixtures("other_user")
def test_a_reader_without_the_right_to_write_reads_it_with_and_without_its_collector(tmp_path):
    (tmp_path / "d").mkdir()
    path = tmp_path / "d/a.archive.sqlite"
    store = ArchiveStore(str(path), writable=True)
    store.write(changes(jobs=[JOB]), None)
    assert path.stat().st_mode & 0o777 == 0o640
    for file in (tmp_path / "d").iterdir():
        file.chmod(0o644)
    for folder in (tmp_path / "d", tmp_path, tmp_path.parent, tmp_path.parent.parent, tmp_path.parent.parent.parent):
        if folder.owner() == "root" and str(folder) != "/tmp":
            folder.chmod(0o755)

    def read():
        os.setgid(65534)
        os.setuid(65534)
        return len(ArchiveStore(str(path)).database.execute("SELECT job FROM jobs").fetchall())

    assert in_child(read) == 1
    store.close()
    assert in_child(read) == 1
