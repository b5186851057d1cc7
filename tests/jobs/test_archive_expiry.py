"""--archive-keep: old summaries go, with those of their hosts, and no others; the fold does not wait."""

from __future__ import annotations

import time

import pytest

from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive import removal
from colmet.jobs.archive.removal import ArchiveExpiry
from colmet.jobs.archive.sharing import ArchiveOutbox
from colmet.jobs.archive.store import ArchiveStore, Changes
from tests.support.archive_data import YEAR_S, YEAR_START, summaries, write

TABLES = ("jobs", "job_details", "hosts", "host_details", "listed")
DAY = 86400


@pytest.fixture
def store(tmp_path):
    store = ArchiveStore(str(tmp_path / "a.sqlite"), writable=True)
    yield store
    store.close()


def count(store, table, where="1"):
    return store.database.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0]


def test_jobs_that_ended_before_the_limit_go_with_their_hosts(store, monkeypatch):
    monkeypatch.setattr(removal, "EXPIRED_AT_ONCE", 50)
    write(store, summaries(1000))
    start, last = store.database.execute("SELECT start, last FROM jobs ORDER BY wall_s DESC LIMIT 1").fetchone()
    limit = (start + last) // 2
    keep = 200 * DAY
    now = limit + keep
    old = count(store, "jobs", f"last < {limit}")
    late = [row[0] for row in store.database.execute(f"SELECT job FROM jobs WHERE start < {limit} AND last >= {limit}")]
    assert old > 100 and late, "jobs that began before the limit and ended after it"
    hosts = count(store, "hosts", f"last >= {limit}")
    expired = ArchiveExpiry(keep, lambda: now)
    calls = 0
    while expired._due_at <= time.monotonic():
        before = expired.removed
        expired.remove(store)
        assert expired.removed - before <= 50
        calls += 1
    assert expired.removed == old and calls == old // 50 + 1
    assert count(store, "jobs", f"last < {limit}") == 0
    assert {table: count(store, table) for table in TABLES} == {
        **dict.fromkeys(("jobs", "job_details", "listed"), 1000 - old),
        **dict.fromkeys(("hosts", "host_details"), hosts),
    }
    assert all(count(store, "jobs", f"job = {job}") for job in late)


def test_all_stay_without_a_limit_and_jobs_that_their_hosts_may_go_on_with(store):
    write(store, summaries(20))
    far = YEAR_START + 100 * YEAR_S
    ArchiveExpiry(0, lambda: far).remove(store)
    assert count(store, "jobs") == 20
    job, start = store.database.execute("SELECT job, start FROM jobs ORDER BY start LIMIT 1").fetchone()
    store.write(Changes([], [], {(job, "node1", start): b"unfinished"}), None)
    expired = ArchiveExpiry(DAY, lambda: far)
    expired.remove(store)
    assert expired.removed == 19 and count(store, "jobs", f"job = {job}") == 1


def test_a_failure_is_reported_and_removes_nothing(store):
    write(store, summaries(20))
    store.database.execute("CREATE TRIGGER no BEFORE DELETE ON hosts BEGIN SELECT raise(ABORT, 'no'); END")
    with pytest.raises(OutputUnavailable, match="cannot remove"):
        ArchiveExpiry(DAY, lambda: YEAR_START + 100 * YEAR_S).remove(store)
    assert count(store, "jobs") == count(store, "listed") == 20


def test_removed_summaries_wait_to_be_removed_from_a_shared_archive_too(store):
    write(store, summaries(20))
    outbox = ArchiveOutbox(store.database)
    outbox.open()
    outbox.done(outbox.next(1000))
    assert outbox.count() == 0
    hosts = {(row["job"], row["host"], row["start"]) for row in store.database.execute("SELECT * FROM hosts")}
    ArchiveExpiry(DAY, lambda: YEAR_START + 100 * YEAR_S).remove(store)
    assert {one[:3] for one in outbox.next(1000)} >= hosts and count(store, "jobs") == 0
