"""From local archives to a shared one: each job is made of all its hosts, for any order of writes and kills."""

from __future__ import annotations

import contextlib
import itertools
import time

import pytest

from colmet.batch.systems import JobRecord
from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive import removal
from colmet.jobs.archive.documents import HOSTS, JOBS, STATE
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.indices import Indices
from colmet.jobs.archive.sharing import ArchiveOutbox, Sharer, ShareThread, outbox_of
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.job_summaries import job_summary, runs_of
from tests.support.archive_data import YEAR_START, summaries
from tests.support.archive_database import PREFIX, ArchiveDatabase, client_of
from tests.support.waiting import wait_for

BATCH = {
    **{"state": "done", "system": "slurm", "batch_id": "1", "owner": "ann", "queue": "long"},
    **{"started": YEAR_START, "ended": YEAR_START + 100},
}


def host(job, name, start, wall=100, running=0, **columns):
    """The summary of a host."""
    (row,) = itertools.islice([rows[0] for _, rows in summaries(1)], 1)
    times = {"job": job, "host": name, "start": start, "last": start + wall, "is_running": running}
    return {**row, "wall_s": float(wall), "host_s": float(wall), "footprint": None, **times, **columns}


class Collector:
    """A local archive that is shared."""

    def __init__(self, path, database, indices=None):
        self.store = ArchiveStore(str(path), writable=True)
        self.outbox = outbox_of(self.store, True)
        self.client = client_of(database.url, 5)
        self.indices = indices or Indices(self.client, PREFIX)
        self.sharer = Sharer(self.store, self.indices)

    def write(self, *hosts):
        """As the archive's output does: summaries of hosts, and of the whole jobs as far as it knows them."""
        jobs, moves = [], []
        for job in {one["job"] for one in hosts}:
            fresh = {(one["host"], one["start"]) for one in hosts}
            rows = [one for one in self.store.hosts_of(job) if (one["host"], one["start"]) not in fresh]
            runs = runs_of([*rows, *[one for one in hosts if one["job"] == job]])
            before = self.store.measured_starts(job)
            jobs += [job_summary(run) for run in runs]
            starts = {min(one["start"] for one in run) for run in runs}
            moves += [
                (job, old, min(one["start"] for one in run))
                for run in runs
                for old in before
                if old in {one["start"] for one in run} and old not in starts
            ]
        self.store.write(Changes(hosts, jobs, {}, moves), None)

    def join(self, job, start, **values):
        """As the batch system's part does."""
        sets = ", ".join([f"{name} = ?" for name in values])
        self.store.database.execute(
            f"UPDATE jobs SET {sets} WHERE job = ? AND start = ?", [*values.values(), job, start]
        )

    def know(self, record):
        """As the batch system's part does, whether there are rows or not."""
        self.store.join("slurm", [record])

    def push(self):
        while self.sharer.push():
            pass

    def close(self):
        self.store.close()
        self.client.close()


@pytest.fixture
def database():
    database = ArchiveDatabase()
    yield database
    database.close()


@pytest.fixture
def collectors(tmp_path, database):
    """Make collectors."""
    made = []

    def make(name, of=database, indices=None):
        made.append(Collector(tmp_path / name, of, indices))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def one_for_all(tmp_path):
    """Return the documents that one collector with all these hosts makes."""

    def made(*hosts, join=()):
        database = ArchiveDatabase()
        single = Collector(tmp_path / f"single{time.monotonic_ns()}", database)
        try:
            single.write(*hosts)
            for job, start in join:
                single.join(job, start, **BATCH)
            single.push()
            return database.sources(JOBS), database.sources(HOSTS)
        finally:
            single.close()
            database.close()

    return made


def found(database):
    return database.sources(JOBS), database.sources(HOSTS)


def test_what_a_proxy_refuses_as_too_large_is_sent_in_smaller_parts(database, collectors, monkeypatch):
    one, send = collectors("a"), Sharer._send_hosts

    def refuse(self, waiting):
        if len(waiting) > 100:
            raise OutputUnavailable("413 Payload Too Large")
        return send(self, waiting)

    monkeypatch.setattr(Sharer, "_send_hosts", refuse)
    one.write(*[host(n, "a", YEAR_START) for n in range(1, 301)])
    for _ in range(30):
        with contextlib.suppress(OutputUnavailable):
            one.sharer.push()
    assert len(database.sources(JOBS)) == 300


def test_a_job_on_hosts_of_two_collectors_is_one_job(database, collectors, one_for_all):
    a, b = collectors("a"), collectors("b")
    hosts = [host(1, "n1", YEAR_START), host(1, "n2", YEAR_START + 3, 200)]
    a.write(hosts[0])
    a.push()
    b.write(hosts[1])
    b.push()
    assert found(database) == one_for_all(*hosts)
    (job,) = database.sources(JOBS).values()
    assert (job["hosts"], job["wall_s"], job["host_names"]) == (2, 203.0, ["n1", "n2"])
    assert job["cpu_s"] == sum(one["cpu_s"] for one in hosts) and job["whole_month"] == "2026-01"


def test_a_host_that_began_earlier_moves_the_job(database, collectors, one_for_all):
    a, b = collectors("a"), collectors("b")
    hosts = [host(1, "n1", YEAR_START + 9, 900), host(1, "n2", YEAR_START, 900)]
    a.write(hosts[0])
    a.join(1, YEAR_START + 9, **BATCH)
    a.push()
    assert list(database.sources(JOBS)) == [f"1-{YEAR_START + 9}"]
    b.write(hosts[1])
    b.push()
    assert found(database) == one_for_all(*hosts, join=[(1, YEAR_START)])
    assert [(one["start"], one["owner"]) for one in database.sources(JOBS).values()] == [(YEAR_START, "ann")]


def test_a_number_that_is_used_again_is_another_job(database, collectors, one_for_all):
    a, b = collectors("a"), collectors("b")
    hosts = [host(1, "n1", YEAR_START), host(1, "n2", YEAR_START + 5000), host(1, "n3", YEAR_START + 5001)]
    a.write(hosts[0], hosts[1])
    b.write(hosts[2])
    b.push()
    a.push()
    assert found(database) == one_for_all(*hosts)
    assert [one["hosts"] for one in database.sources(JOBS).values()] == [1, 2]


def test_values_of_the_batch_system_and_figures_leave_each_other_alone(database, collectors):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START, running=1, owner=None))
    a.push()
    a.join(1, YEAR_START, **{**BATCH, "state": "running", "ended": None})
    a.push()
    a.write(host(1, "n1", YEAR_START, 200))
    a.push()
    (job,) = database.sources(JOBS).values()
    assert (job["wall_s"], job["state"], job["user"], job["queue"]) == (200.0, "running", "ann", "long")
    a.join(1, YEAR_START, state="failed", ended=YEAR_START + 201)
    a.push()
    (job,) = database.sources(JOBS).values()
    assert (job["wall_s"], job["state"], job["ended"]) == (200.0, "failed", YEAR_START + 201)


def test_a_job_that_only_the_batch_system_knows_is_one_job_until_rows_come(database, collectors, one_for_all):
    a, b = collectors("a"), collectors("b")
    for one in (a, b):
        one.know(JobRecord(1, "slurm", "1", "done", YEAR_START + 2, YEAR_START + 100, "ann"))
        one.push()
    (job,) = database.sources(JOBS).values()
    assert (job["start"], job["end"], job["user"]) == (YEAR_START + 2, YEAR_START + 100, "ann") and "hosts" not in job
    b.write(host(1, "n1", YEAR_START))
    b.push()
    (job,) = database.sources(JOBS).values()
    assert (job["start"], job["hosts"], job["user"], job["state"]) == (YEAR_START, 1, "ann", "done")


def test_of_a_host_at_two_collectors_the_later_summary_counts(database, collectors):
    a, b = collectors("a"), collectors("b")
    a.write(host(1, "n1", YEAR_START, 100))
    b.write(host(1, "n1", YEAR_START, 300))
    b.push()
    a.push()
    (job,) = database.sources(JOBS).values()
    assert (job["wall_s"], job["hosts"]) == (300.0, 1) and not a.outbox.count()


def test_a_summary_that_is_removed_is_removed_there(database, collectors, one_for_all):
    a = collectors("a")
    hosts = [host(1, "n1", YEAR_START), host(2, "n1", YEAR_START + 500)]
    a.write(*hosts)
    a.join(1, YEAR_START, **BATCH)
    a.push()
    for table in ("jobs", "hosts", "job_details", "host_details"):
        a.store.database.execute(f"DELETE FROM {table} WHERE job = 1")
    a.push()
    assert found(database) == one_for_all(hosts[1])


def test_changes_are_noted_after_another_writer_has_opened_the_file(tmp_path):
    path = str(tmp_path / "a.sqlite")
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        outbox = outbox_of(store, is_shared=True)
        with contextlib.closing(ArchiveStore(path, writable=True)) as other:  # as the batch system's thread does
            assert ArchiveOutbox(other.database).count() == 0
        store.write(Changes([host(7, "n1", 100)], [], {}), None)
        assert outbox.count() == 1


def test_a_summary_that_changes_while_it_is_sent_is_sent_again(collectors):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START))
    before = a.outbox.next(10)
    a.write(host(1, "n1", YEAR_START, 200))
    a.outbox.done(before)
    assert [one[:3] for one in a.outbox.next(10)] == [(1, "n1", YEAR_START)]


def test_an_outbox_that_lacks_a_trigger_is_made_again(collectors):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START), host(2, "n1", YEAR_START))
    a.outbox.done(a.outbox.next(10))
    a.outbox.open()
    assert not a.outbox.count()
    a.store.database.execute("DROP TRIGGER unshared_job_update")  # by an earlier or a later version
    a.outbox.open()
    assert a.outbox.count() == 2


def test_an_archive_that_is_shared_later_is_shared_as_a_whole(tmp_path, database, collectors):
    store = ArchiveStore(str(tmp_path / "a"), writable=True)
    rows = [host(job, "n1", YEAR_START + 1000 * job) for job in range(1, 4)]
    store.write(Changes(rows, [job_summary([row]) for row in rows], {}), None)
    store.join("slurm", [JobRecord(2, "slurm", "2", "done", YEAR_START + 2000, YEAR_START + 2100)])
    store.close()
    a = collectors("a")
    assert a.outbox.count() == 4
    a.push()
    assert [one["state"] for one in database.sources(JOBS).values()] == ["ended", "done", "ended"]
    outbox_of(a.store, False)
    a.write(host(9, "n1", YEAR_START))  # no trigger, and no error
    assert outbox_of(a.store, True).count() == 5


class Interleaved:
    """A client that does something else before, or behind, its nth request; or is killed there."""

    def __init__(self, client, when, place, do):
        self._client, self._when, self._place, self._do = client, when, place, do
        self.count = 0

    def ask(self, *arguments):
        self.count += 1
        here = self.count == self._place
        if here and self._when == "before":
            self._do()
        answer = self._client.ask(*arguments)
        if here and self._when == "after":
            self._do()
        return answer


class KilledError(Exception):
    """The process ends."""


def die():
    raise KilledError


CASES = {
    "one run": ([host(1, "n1", YEAR_START), host(2, "n1", YEAR_START)], [host(1, "n2", YEAR_START + 1)]),
    "it moves": ([host(1, "n1", YEAR_START + 50)], [host(1, "n2", YEAR_START)]),
    "runs are joined": (
        [host(1, "n1", YEAR_START), host(1, "n1", YEAR_START + 2000)],
        [host(1, "n2", YEAR_START, 1900), host(1, "n3", YEAR_START + 2001)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["runs are joined", *[pytest.param(case, marks=pytest.mark.slow) for case in ("one run", "it moves")]]
)
def test_two_collectors_at_once_make_one_job_of_all_hosts(tmp_path, database, case, one_for_all):
    """The second collector shares its hosts at any moment of the first one's work: it only sees the requests."""
    mine, others = CASES[case]
    expected = one_for_all(*mine, *others)
    for place in itertools.count(1):
        database.clear()
        b = Collector(tmp_path / f"b{place}", database)
        client = client_of(database.url)
        b.write(*others)
        between = Interleaved(client, "before", place, b.push)
        a = Collector(tmp_path / f"a{place}", database, Indices(between, PREFIX))
        a.write(*mine)
        try:
            a.push()
            if between.count >= place:
                assert found(database) == expected, place
            assert not a.outbox.count()
        finally:
            a.close()
            b.close()
            client.close()
        if between.count < place:
            break
    assert place > 10


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_collector_killed_at_any_request_loses_and_repeats_nothing(tmp_path, database, when, one_for_all):
    mine, others = CASES["it moves"]
    expected = one_for_all(*mine, *others)
    for place in itertools.count(1):
        database.clear()
        b = Collector(tmp_path / f"b{place}", database)
        client = client_of(database.url)
        killed = Interleaved(client, when, place, die)
        a = Collector(tmp_path / f"a{place}", database, Indices(killed, PREFIX))
        a.write(*mine)
        b.write(*others)
        again = Collector(tmp_path / f"a{place}", database)
        try:
            with contextlib.suppress(KilledError):
                a.push()
            b.push()
            again.push()
            assert found(database) == expected, place
        finally:
            for one in (a, b, again):
                one.close()
            client.close()
        if killed.count < place:
            break
    assert place > 10


@pytest.mark.parametrize("kind", ["es_rejected_execution_exception", "cluster_block_exception"])
def test_what_the_database_has_no_room_for_waits(database, collectors, kind):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START))
    database.item = lambda action, document: (429 if kind.startswith("es") else 403, kind)
    with pytest.raises(OutputUnavailable, match=kind):
        a.push()
    assert a.outbox.count() == 1
    database.item = lambda action, document: None
    a.push()
    assert len(database.sources(JOBS)) == 1 and not a.outbox.count()


def test_a_job_that_others_change_all_the_time_waits(database, collectors):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START), host(2, "n1", YEAR_START))
    database.item = lambda action, document: (
        (409, "version_conflict_engine_exception") if action["_id"] == "1" else None
    )
    a.push()
    assert [one["job"] for one in database.sources(JOBS).values()] == [2]
    assert a.outbox.count() == 1 and a.sharer.counts["postponed"]
    database.item = lambda action, document: None
    a.push()
    assert len(database.sources(JOBS)) == 2 and not a.outbox.count()


def test_what_is_refused_for_good_does_not_hold_up_others(database, collectors, caplog):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START), host(2, "n1", YEAR_START))
    database.item = lambda action, document: (
        (400, "mapper_parsing_exception") if document and document.get("job") == 1 else None
    )
    a.push()
    assert [one["job"] for one in database.sources(JOBS).values()] == [2]
    assert a.indices.refused and not a.outbox.count()
    assert "summary refused for good" in caplog.text


def test_indices_that_are_removed_are_made_again(database, collectors, one_for_all):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START))
    a.push()
    database.stored.clear()
    a.write(host(1, "n1", YEAR_START, 200))
    with pytest.raises(OutputUnavailable):
        a.push()
    a.push()
    assert found(database) == one_for_all(host(1, "n1", YEAR_START, 200))


def test_fields_of_a_later_version_are_added(database, collectors, caplog):
    a = collectors("a")
    a.indices.prepare()
    fields = database.mappings["t_archive-jobs"]["properties"]
    del fields["energy_joules"], fields["name_lower"]
    b = collectors("b")
    b.indices.prepare()
    assert database.mappings["t_archive-jobs"]["properties"]["energy_joules"] == {"type": "double"}
    assert not caplog.text
    assert {one["_meta"]["managed_by"] for one in database.templates.values()} == {"colmet"}


def test_without_the_right_to_make_templates_the_indices_are_made(database, collectors, caplog):
    database.script["PUT", "/_index_template/"] = [(403, {"error": {"type": "security_exception", "reason": "no"}})]
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START))
    a.push()
    assert len(database.sources(JOBS)) == 1 and not database.templates
    assert "index templates of the archive cannot be made" in caplog.text


def test_a_state_that_is_unreadable_starts_empty(database, collectors, caplog):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START))
    a.indices.prepare()
    database.stored[f"{PREFIX}{STATE}"]["1"] = ({"members": 7}, 1, 1)
    a.push()
    assert len(database.sources(JOBS)) == 1
    assert "state of a job unreadable" in caplog.text


def test_the_thread_shares_what_is_written_and_waits_for_a_database(tmp_path, database, collectors, caplog):
    a = collectors("a")
    database.item = lambda action, document: (503, "unavailable_shards_exception")
    thread = ShareThread(a.store.path, a.indices, look_s=0.05)
    try:
        a.write(host(1, "n1", YEAR_START))
        thread.wake()
        wait_for(lambda: thread.failures)
        assert thread.counters()["unshared"] == 1 and not database.sources(JOBS)
        a.write(host(2, "n1", YEAR_START))  # nothing holds it up
        database.item = lambda action, document: None
        wait_for(lambda: len(database.sources(JOBS)) == 2 and not a.outbox.count())
        assert "shared archive unavailable, summaries wait" in caplog.text
        wait_for(lambda: "shared archive available again" in caplog.text)  # logged after all are written
        a.join(2, YEAR_START, **{**BATCH, "batch_id": "2"})  # by another process: it is found without a word
        wait_for(lambda: any(one.get("owner") == "ann" for one in database.sources(JOBS).values()))
        a.write(host(3, "n1", YEAR_START))
    finally:
        thread.stop(10)
    assert len(database.sources(JOBS)) == 3
    assert thread.counters() == {
        **{"unshared": 0, "shared": 4, "conflicts": 0, "postponed": 0, "share_refused": 0},
        "share_failures": thread.failures,
    }


def test_a_job_in_the_shared_archive_is_that_of_the_local_one(database, collectors):
    a = collectors("a")
    a.write(host(1, "n1", YEAR_START), host(1, "n2", YEAR_START))
    a.push()
    with ElasticArchive(a.client, PREFIX) as archive:
        shared = archive.job(1)
    assert [one["host"] for one in shared.hosts] == ["n1", "n2"] and shared.starts == [YEAR_START]
    (row,) = a.store.database.execute("SELECT * FROM jobs JOIN job_details USING (job, start)").fetchall()
    shown = {name: shared.summary[name] for name in dict(row) if name not in ("user", "state")}
    assert shown == {name: value for name, value in dict(row).items() if name not in ("user", "state")}


@pytest.mark.parametrize("other", ["", "user-1234"])
def test_a_user_who_is_forgotten_is_forgotten_in_the_shared_archive_too(database, collectors, other):
    a, b = collectors("a"), collectors("b")
    for collector, node in ((a, "n1"), (b, "n2")):
        collector.write(host(1, node, YEAR_START, user="ann"), host(2, node, YEAR_START, user="bob"))
        collector.push()
    for collector in (a, b):
        removal.forget(collector.store, removal.runs_of_user(collector.store, "ann"), "ann", other)
        collector.push()
    jobs, hosts = found(database)
    assert {row["user"] for row in (*jobs.values(), *hosts.values())} == {"bob", *([other] if other else [])}
    assert len(jobs) == (2 if other else 1) and len(hosts) == 2 * len(jobs)
    assert "ann" not in str([database.sources(name) for name in (JOBS, HOSTS, STATE)])
