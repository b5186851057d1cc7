"""Rows folded into summaries: equal to the report of the same rows, whatever the bursts, restarts and repetitions."""

from __future__ import annotations

import random
from functools import lru_cache
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
from colmet.jobs import fold_nodes as nodes
from colmet.jobs import fold_state as state
from colmet.jobs import footprint, open_jobs
from colmet.jobs.archive.archiver import Arrival, Ordering
from colmet.jobs.host_summaries import host_summaries
from colmet.jobs.report import stored_fold
from colmet.jobs.report.rows import gather
from colmet.jobs.report.stored_fold import COLUMNS, StoredFold
from colmet.stored.job_rows import JobInterval, JobRows
from tests.support.archives import Archive, Record, records_of, replayed
from tests.support.made_up_history import GIB, START, MadeUp, S, job_rows, node_rows

CGROUP, TASKS, NODE = (schemas()[f"{name}_default"] for name in ("cgroup", "taskstats", "procstats"))


def folded(tmp_path, history, jobs=(42,), name="a"):
    archive = Archive(tmp_path / f"{name}.sqlite")
    archive.take(records_of(replayed(history, jobs)))
    archive.end()
    return archive


def tick(n, jobs=(42,), host="n1", epoch=1, period=5, off_s=0, **columns):
    """A batch of a node whose jobs use one core of two; its clock may be off."""
    time_ns = (START + period * n + off_s) * S
    samples = [
        Sample(job, {"cpu_usage": period * n * S, "cpus_allocated": 2, "memory_current": GIB + n, **columns})
        for job in jobs
    ]
    tasks = [Sample(job, {"ac_btime": START, "cpu_delay_total": n * S}) for job in jobs]
    tables = [Table.from_samples(CGROUP, time_ns, samples), Table.from_samples(TASKS, time_ns, tasks)] if jobs else []
    tables.append(Table.from_samples(NODE, time_ns, [Sample(0, {"stat_cpu_user": 500 * n, "stat_cpus": 4})]))
    return Batch(host, epoch, n, time_ns, tuple(jobs), tuple(tables))


def at_once(history, job=42):
    """The summaries of hosts from the stored rows of a job, folded at once."""
    made = StoredFold()
    for rows in JobRows(history, JobInterval(job), COLUMNS).groups():
        for stored in rows:
            made.add(job, stored, np.nan)
    return list(host_summaries(made.fold, np.array(list(made.slots.values()))))


# Of nodes, or of the time between batches.
NOT_OF_ROWS = {"footprint", "joules", "node_joules", "energy_s", "energy_source", "is_running", "missing", "advice"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"cpu_usage": np.r_[1:60, 1:63] * S},
        {"cpu_usage": np.r_[1:60, 10**7, 61:122] * S, "memory_peak": None},
        {"cpu_delay_total": np.arange(121) ** 3 * S, "cpus_allocated": -1},
        {"read_bytes": np.where(np.arange(121) % 3, -1, np.arange(121))},
    ],
    ids=["steady", "reset", "impossible", "waits", "missing"],
)
def test_rows_at_once_have_the_figures_of_rows_one_by_one(tmp_path, more):
    history = MadeUp()
    for n, host in enumerate(("node-1", "node-2")):
        job_rows(history, host=host, cores=2.0 - n, count=121, **more)
        node_rows(history, host=host)
    stored = at_once(history)
    lived = folded(tmp_path, history).hosts()
    assert [one["host"] for one in stored] == [one["host"] for one in lived] == ["node-1", "node-2"]
    for one, other in zip(stored, lived):
        for name in one.keys() - NOT_OF_ROWS:
            value = other[name]
            assert one[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, (int, float)) else value), name


def test_rows_are_folded_alike_in_parts(monkeypatch):
    history = MadeUp()
    job_rows(history, read_bytes=np.where(np.arange(121) % 40, -1, np.arange(121)))
    expected = at_once(history)
    monkeypatch.setattr(stored_fold, "AT_ONCE", 7)
    assert at_once(history) == expected


@pytest.mark.slow
def test_a_footprint_follows_the_life_of_the_job(tmp_path):
    history = MadeUp()
    cores = np.where(np.arange(1000) < 500, 1.0, 3.0)
    job_rows(history, count=1000, cpu_usage=np.cumsum(cores * 5 * S).astype(np.int64))
    node_rows(history, count=1010)
    (job,) = folded(tmp_path, history).jobs()
    curves = footprint.decode(job["footprint"])
    assert len(job["footprint"]) <= footprint.MAX_BYTES
    cpu = curves.curves["cpu"]
    assert 32 <= len(cpu) <= 64 and curves.step_s * len(cpu) >= 5000
    assert cpu[2:18] == pytest.approx(1.0, rel=0.01) and cpu[-10:-1] == pytest.approx(3.0, rel=0.01)
    assert curves.curves["memory"][:-1] == pytest.approx(3 * GIB)


def test_metadata_operations_are_those_of_its_nodes_while_it_ran(tmp_path):
    lustre = schemas()["lustrestats_default"]
    batches = []
    for n in range(1, 41):
        batch = tick(n, (42,) if 10 <= n < 30 else ())
        row = Table.from_samples(lustre, batch.time_ns, [Sample(0, {"lustre_nb_metadata": 1000 * n})])
        batches.append(batch._replace(tables=(*batch.tables, row)))
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of(batches))
    (job,) = archive.jobs()
    assert (job["lustre_metadata_ops"], job["lustre_read_bytes"]) == (19_000, None)


@pytest.mark.parametrize(("by_process", "by_task"), [(500, 2048), (5000, 4096), (None, 1024)])
def test_of_calls_which_each_source_may_lack_the_larger_number_counts(tmp_path, by_process, by_task):
    """The kernel rounds those of each task down; those of a process that ended unread are missing."""
    history = MadeUp()
    job_rows(history, write_syscalls=np.linspace(0, by_task, 121).astype(np.int64))
    if by_process is not None:
        calls = np.linspace(0, by_process, 121).astype(np.int64)
        history.add(42, "jobprocstats_default", "node-1", history.rows[42, "cgroup_default"]["node-1"][0], syscw=calls)
    expected = max(by_task, by_process or 0)
    assert gather(history, JobInterval(42), START).io.write_calls == expected
    (job,) = folded(tmp_path, history).jobs()
    assert job["write_calls"] == expected


LIVES = ((1, 1, 30), (2, 10, 60), (3, 25, 26), (4, 40, 70))  # jobs, with their first and last tick


def content(archive):
    return [dict(row) for row in (*archive.jobs(), *archive.hosts())]


@lru_cache(maxsize=1)
def made():
    """Batches of three nodes with jobs that come and go, values that are missing, and a counter that starts again."""
    draw = random.Random(5)
    batches = []
    for host in ("n1", "n2", "n3"):
        for n in range(1, 61):
            jobs = tuple(job for job, first, last in LIVES if first <= n <= last)
            more = {"memory_peak": None if draw.random() < 0.5 else 2 * GIB + n}
            if n > 45 and host == "n1":
                more["cpu_usage"] = (n - 45) * S
            batches.append(tick(n, jobs, host, **more))
    batches.sort(key=lambda one: (one.time_ns, one.host))
    return records_of(batches)


@lru_cache(maxsize=1)
def expected():
    with TemporaryDirectory() as folder:
        archive = Archive(f"{folder}/a.sqlite")
        archive.take(made())
        archive.end(over=False)
        return content(archive)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.integers(0, 180), max_size=12), st.randoms(use_true_random=False), st.integers(0, 1))
def test_bursts_and_kills_change_no_value(cuts, draw, with_kills):
    records = made()
    with TemporaryDirectory() as folder:
        archive = Archive(f"{folder}/a.sqlite")
        bounds = sorted({0, *cuts, len(records)})
        for first, end in zip(bounds, bounds[1:]):
            if with_kills and draw.random() < 0.5:
                archive.archiver.take(records[first:end])  # folded, and never written
                archive.store.close()
                archive = Archive(f"{folder}/a.sqlite")
                position = archive.store.position
                assert position is None or position.number <= first
                first = 0 if position is None else position.number
            archive.take(records[first:end])
        archive.end(over=False)
        assert content(archive) == expected()
        archive.store.close()


def test_batches_that_wait_for_missing_ones_are_folded_in_order(tmp_path):
    batches = [tick(n) for n in range(1, 41)]
    expected = Archive(tmp_path / "a.sqlite")
    expected.take(records_of(batches))
    expected.end(over=False)
    late = [*batches[:10], *batches[20:30], *batches[10:20], *batches[30:]]
    for name, bursts in (("b", [late]), ("c", [late[:15], late[15:22], late[22:]])):
        archive = Archive(tmp_path / f"{name}.sqlite")
        number = 0
        for burst in bursts:
            archive.take(records_of(burst, number))
            number += len(burst)
        archive.end(over=False)
        drop = {"footprint"}  # of the same points
        assert [{k: v for k, v in row.items() if k not in drop} for row in content(archive)] == [
            {k: v for k, v in row.items() if k not in drop} for row in content(expected)
        ]


@pytest.mark.parametrize("damaged", ["x'0900'", "substr(state, 1, 20)", "substr(state, 1, length(state) - 1)"])
def test_a_summary_whose_fold_is_unreadable_ends_unless_its_job_goes_on(tmp_path, caplog, damaged):
    path = tmp_path / "a.sqlite"
    archive = Archive(path)
    archive.take(records_of([tick(n, (42, 43)) for n in range(1, 5)]))
    archive.write(whole=True)
    archive.store.database.execute(
        f"UPDATE folds SET state = {damaged} WHERE job > 0"
    )  # of another version, or cut off
    archive.store.close()
    archive = Archive(path)
    assert archive.archiver.counters()["folds_lost"] == 2 and "fold unreadable" in caplog.text
    archive.take(records_of([tick(n) for n in range(5, 9)], 4))
    assert [(job["job"], job["is_running"], job["cpu_s"]) for job in archive.jobs()] == [(42, 1, 40), (43, 0, 20)]
    assert [key[0] for key in archive.store.folds()] == [0, 42]


def test_after_a_lost_fold_the_summary_with_more_samples_stays_as_in_a_rebuild(tmp_path):
    """Also over another restart, and until the new fold has as many samples; whether the job runs is always new."""
    path = tmp_path / "a.sqlite"
    archive = Archive(path)
    archive.take(records_of([tick(n, memory_current=n << 20) for n in range(1, 9)]))
    archive.write(whole=True)
    archive.store.database.execute("UPDATE folds SET state = x'0900' WHERE job > 0")
    archive.store.close()
    for restarts, (first, last) in enumerate(((9, 11), (11, 13))):
        archive = Archive(path)
        assert archive.archiver.counters()["summaries_kept"] == 1
        archive.take(records_of([tick(n, memory_current=1) for n in range(first, last)], first - 1))
        archive.write(whole=True)
        (job,), (host,) = archive.jobs(), archive.store.hosts_of(42)
        assert (host["rows"], host["cpu_s"], host["is_running"]) == (8, 40, 1), restarts
        assert (job["rows"], job["memory_peak"], job["is_running"]) == (8, 8 << 20, 1)
        archive.store.close()
    archive = Archive(path)
    archive.take(records_of([tick(13, ())], 12))  # its end
    assert [(job["rows"], job["is_running"]) for job in archive.jobs()] == [(8, 0)]
    archive.store.close()


def test_a_counter_that_starts_again_counts_what_it_grew(tmp_path):
    values = [*range(1, 11), *range(1, 11)]
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of([tick(n + 1, cpu_usage=value * S) for n, value in enumerate(values)]))
    (job,) = archive.jobs()
    assert job["cpu_s"] == pytest.approx(10 + 9)


def test_impossible_growth_is_not_in_the_sum(tmp_path):
    values = [1, 2, 3, 10**6, 10**6 + 1]
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of([tick(n + 1, cpu_usage=value * S) for n, value in enumerate(values)]))
    assert archive.jobs()[0]["cpu_s"] == pytest.approx(3 + 1)


def test_what_was_not_measured_is_missing(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of([tick(n, cpu_usage=None, cpus_allocated=None, memory_current=None) for n in range(1, 5)]))
    (job,) = archive.jobs()
    for name in ("cpu_s", "memory_peak", "memory_limit", "joules", "gpus", "gpu_s", "read_bytes", "network_sent_bytes"):
        assert job[name] is None, name
    assert job["core_s"] == 20 * 4, "the node's CPUs"


def test_a_job_is_over_when_its_node_no_longer_lists_it(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    batches = [tick(n) for n in range(1, 5)]
    archive.take(records_of(batches))
    assert archive.jobs()[0]["is_running"] == 1
    archive.take(records_of([tick(5, ())], 4))
    (job,) = archive.jobs()
    assert (job["is_running"], job["last"]) == (0, START + 20)


def test_a_number_used_again_is_another_job(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of([tick(n) for n in range(1, 5)]))
    later = 3600
    again = []
    for n in range(1, 5):
        time_ns = (START + later + 5 * n) * S
        sample = Sample(42, {"cpu_usage": n * S, "cpus_allocated": 2})
        tasks = Table.from_samples(TASKS, time_ns, [Sample(42, {"ac_btime": START + later})])
        again.append(Batch("n1", 1, 4 + n, time_ns, (42,), (Table.from_samples(CGROUP, time_ns, [sample]), tasks)))
    archive.take(records_of(again, 4))
    first, second = archive.jobs()
    assert (first["start"], first["last"], first["cpu_s"]) == (START, START + 20, 20)
    assert (second["start"], second["last"], second["cpu_s"]) == (START + later, START + later + 20, 4)


def of_run(at, run, cpu_s, user=b"alice", began=0, off_s=0, seq=None, host="n1"):
    """A batch of job 42 at a second since `START`: CPU time of one run, with a clock that may be off."""
    time_ns = (START + at + off_s) * S
    own = {"run": run, "uptime": 1000 + at}
    cgroup = {"cpu_usage": int(cpu_s * S), "cpus_allocated": 2, "memory_current": GIB, "user": user, **own}
    tasks = {"ac_btime": START + began + off_s, "cpu_total": int(cpu_s * S), **own}
    tables = [Table.from_samples(*one) for one in ((CGROUP, time_ns, [Sample(42, cgroup)]),)]
    tables.append(Table.from_samples(TASKS, time_ns, [Sample(42, tasks)]))
    return Batch(host, 1 if seq else None, seq, time_ns, (42,), tuple(tables))


@pytest.mark.parametrize("began", [0, 2])
def test_a_number_used_again_at_once_is_another_job_of_another_user(tmp_path, began):
    """The last row of the first run has the time of the next second, in which the second run has its first one."""
    archive = Archive(tmp_path / "a.sqlite")
    batches = [of_run(0, 7, 0.1), of_run(1, 7, 1.0), of_run(2, 7, 1.5)]
    batches += [of_run(at, 8, (at - 1) / 10, b"zoe", began) for at in (2, 3, 4)]
    archive.take(records_of([one._replace(epoch=1, seq=n) for n, one in enumerate(batches, 1)]))
    first, second = archive.jobs()
    assert (first["user"], first["cpu_s"], first["is_running"]) == ("alice", 1.5, 0)
    assert (second["user"], round(second["cpu_s"], 6), second["is_running"]) == ("zoe", 0.3, 1)
    assert second["start"] == first["start"] + (began or 1) and second["wall_s"] == 4 - (began or 1)


def test_a_late_row_of_the_run_before_is_not_the_next_ones(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of([of_run(0, 7, 1), of_run(5, 7, 5), of_run(10, 8, 0.5), of_run(9, 7, 9), of_run(15, 8, 1)]))
    assert [(job["cpu_s"], job["samples"]) for job in archive.jobs()] == [(5, 2), (1, 2)]
    assert archive.archiver.counters()["late_rows"] == 2 and not archive.archiver.counters()["rows_left_out"]


@pytest.mark.parametrize("back_at", [40, 100])
@pytest.mark.parametrize("off_s", [-3600, 3600, -5])
def test_a_run_stays_one_while_a_clock_is_set(tmp_path, off_s, back_at):
    """Its wall time, its missing samples and its memory over time are those of a clock that runs on."""
    figures = []
    for n, off in enumerate((0, off_s)):
        archive = Archive(tmp_path / f"{n}.sqlite")
        set_at = range(20, back_at)
        archive.take(records_of([of_run(at, 7, at, off_s=off * (at in set_at), seq=at + 1) for at in range(60)]))
        archive.end(over=False)
        figures.append(archive.jobs())
    assert figures[1] == figures[0]
    ((job,),) = figures[1:]
    assert (job["wall_s"], job["samples"], job["missing"], round(job["cpu_s"], 6)) == (59, 60, 0, 59)


def test_runs_of_a_node_that_is_updated_while_a_job_runs_are_one(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    batches = [of_run(at, None if at < 30 else 7, at) for at in range(0, 60, 5)]
    archive.take(records_of(batches))
    (job,) = archive.jobs()
    assert (job["cpu_s"], job["samples"]) == (55, 12)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_cgroup_that_is_there_before_its_first_task_is_of_the_same_job_unless_it_has_gone(tmp_path, has_ended):
    archive = Archive(tmp_path / "a.sqlite")

    def of(n, *began):
        time_ns = (START + 5 * n) * S
        sample = Table.from_samples(CGROUP, time_ns, [Sample(42, {"cpu_usage": n * S, "cpus_allocated": 2})])
        tasks = [Table.from_samples(TASKS, time_ns, [Sample(42, {"ac_btime": one})]) for one in began]
        return Batch("n1", 1, n, time_ns, (42,), (sample, *tasks))

    archive.take(records_of([of(1), of(2), *([tick(3, ())] if has_ended else [])]))
    archive.take(records_of([of(n, START + 12 + 5 * has_ended) for n in range(3 + has_ended, 7)], 4))
    starts = [(job["start"], job["last"]) for job in archive.jobs()]
    if has_ended:
        assert starts == [(START + 5, START + 10), (START + 17, START + 30)]
    else:
        assert starts == [(START + 5, START + 30)]


@pytest.mark.parametrize("rows_before", [0, 2])
def test_rows_read_later_than_their_time_are_of_one_job(tmp_path, rows_before):
    """Of a busy node: the first task began after the time of its first row."""
    archive = Archive(tmp_path / "a.sqlite")
    for n in range(1, 6):
        time_ns = (START + 5 * n) * S
        tables = [Table.from_samples(CGROUP, time_ns, [Sample(42, {"cpu_usage": n * S, "cpus_allocated": 2})])]
        if n > rows_before:
            began = START + 5 * (rows_before + 1) + 1 - n % 2  # the kernel's clocks differ by a second now and then
            tables.append(Table.from_samples(TASKS, time_ns, [Sample(42, {"ac_btime": began})]))
        archive.take(records_of([Batch("n1", 1, n, time_ns, (42,), tuple(tables))], n - 1))
        archive.write()
    assert [(job["start"], job["last"]) for job in archive.jobs()] == [(START + 5, START + 25)]


@pytest.mark.slow
@pytest.mark.parametrize("others", [False, True], ids=["all nodes away", "one node away"])
def test_a_job_whose_agent_was_away_over_a_weekend_is_one_job_with_all_its_samples(tmp_path, others):
    back = 37_000  # two days later
    batches = [tick(n) for n in range(1, 21)]
    batches += [tick(n, (43,), host="n2") for n in range(20, back, 100)] if others else []
    batches += [tick(n, epoch=2)._replace(seq=n - back + 1) for n in range(back, back + 11)]
    archive = Archive(tmp_path / "a.sqlite")
    for number, record in enumerate(records_of(batches)):
        archive.archiver.take([record])
        if not number % 5:
            archive.write()
    job = next(one for one in archive.jobs() if one["job"] == 42)
    assert (job["samples"], job["start"], job["wall_s"]) == (31, START, 5.0 * 37_010)
    assert job["cpu_s"] == 5.0 * 37_010 and job["memory_byte_s"] == pytest.approx(5.0 * 37_010 * GIB, rel=1e-4)
    assert len([one for one in archive.jobs() if one["job"] == 42]) == 1


def test_a_host_that_comes_later_joins_the_job_and_an_earlier_one_moves_its_start(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")

    def of(host, n, began):
        batch = tick(n, host=host)
        time_ns = batch.time_ns
        tasks = Table.from_samples(TASKS, time_ns, [Sample(42, {"ac_btime": began})])
        return Batch(host, 1, n, time_ns, (42,), (batch.tables[0], tasks))

    archive.take(records_of([of("n1", n, START + 5) for n in range(1, 5)]))
    assert [job["start"] for job in archive.jobs()] == [START + 5]
    archive.store.database.execute("UPDATE jobs SET name = 'x'")
    archive.take(records_of([of("n2", n, START) for n in range(1, 6)], 4))
    (job,) = archive.jobs()
    assert (job["start"], job["hosts"], job["name"]) == (START, 2, "x"), "with what the batch system knows"
    assert job["cpu_s"] == pytest.approx(15 + 25), "n1 cannot have used 5 s of its 2 CPUs before its first row"


def test_late_rows_are_counted_and_do_no_harm(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(records_of([tick(n) for n in range(1, 11)]))
    before = archive.jobs()[0]["cpu_s"]
    old = tick(3)
    archive.take(records_of([Batch("n1", None, None, old.time_ns, (42,), old.tables)], 10))
    assert archive.jobs()[0]["cpu_s"] == before and archive.archiver.counters()["late_rows"] > 0


@pytest.mark.parametrize("until", [10, 20])
@pytest.mark.parametrize("off_s", [-3600, 3600, -600])
@pytest.mark.parametrize("cpus", [1, 2])
def test_growth_is_whole_while_a_clock_is_set(tmp_path, cpus, off_s, until):
    """From tick 6 on, and back at tick 10 or never; the job uses half of its CPUs, or all, and ends within the hour."""
    archive = Archive(tmp_path / "a.sqlite")
    ticks = [(n + 1, off_s if 5 <= n < until else 0) for n in range(20)]
    archive.take(records_of([tick(n, off_s=off, cpu_usage=5 * n * cpus * S) for n, off in ticks]))
    (job,) = archive.jobs()
    assert (job["cpu_s"], job["samples"]) == (100 * cpus, 20)


# -- shares --


@pytest.fixture
def few_slots(monkeypatch):
    """Room for 40 jobs, at most 10 of a host."""
    monkeypatch.setattr(state, "MOST_FOLDS", 40)
    monkeypatch.setattr(open_jobs, "MOST_FOLDS", 40)
    monkeypatch.setattr(open_jobs, "MAX_JOBS", 10)


def flood(archive, ticks, time_of=lambda n: 0, listed=lambda jobs: None, hosts=("evil",)):
    """Five new jobs of each host at every tick."""
    for n in range(ticks):
        jobs = tuple(range(1000 + 5 * n, 1005 + 5 * n))
        batches = [tick(time_of(n), jobs, host)._replace(seq=n + 1, jobs=listed(jobs)) for host in hosts]
        archive.take([Record(archive.archiver.until, (START + 5 * n) * S, tuple(batches))])


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"time_of": lambda n: 10**6 + n},
        {"listed": lambda jobs: jobs},
        {"listed": lambda jobs: tuple(range(1000, 1300))},
        {"hosts": ("evil", "e2", "e3", "e4", "e5", "e6")},
    ],
    ids=["one time", "future", "listed", "listed for ever", "six of them"],
)
def test_a_flood_of_jobs_costs_its_sender_alone(tmp_path, few_slots, others):
    archive = Archive(tmp_path / "a.sqlite")
    flood(archive, 8, **others)
    for n in range(2):
        archive.take([Record(archive.archiver.until, (START + 151 + n) * S, (tick(n, (42,), "honest"),))])
    assert [job["job"] for job in archive.jobs() if job["job"] == 42] == [42]
    assert archive.archiver.fold.state.count <= 40
    restarted = Archive(tmp_path / "a.sqlite")
    restarted.take([Record(restarted.archiver.until, (START + 160) * S, (tick(2, (42, 43), "honest"),))])
    assert {42, 43} <= {job["job"] for job in restarted.jobs()}


def test_a_sender_loses_its_oldest_job_that_is_over(tmp_path, few_slots):
    archive = Archive(tmp_path / "a.sqlite")
    archive.take(
        records_of([tick(1, range(1, 11)), tick(2, range(2, 11)), tick(3, range(2, 12)), tick(4, range(2, 12))])
    )
    assert {job for jobs in archive.archiver.fold.jobs.open_on.values() for job in jobs} == set(range(2, 12))
    assert [job["job"] for job in archive.jobs() if not job["is_running"]] == [1]


def test_new_jobs_replace_the_former_ones_of_their_sender(tmp_path, few_slots):
    archive = Archive(tmp_path / "a.sqlite")
    for n in range(4):
        archive.take(records_of([tick(n, range(10 * n + 1, 10 * n + 11))], n))
    assert archive.archiver.counters()["rows_left_out"] == 0 and len(archive.jobs()) == 40


def test_a_fold_of_a_node_that_goes_on_without_the_job_ends_by_the_time_of_reception(tmp_path):
    archive = Archive(tmp_path / "a.sqlite")
    for n in range(30):
        batch = tick(0, (42,) if n == 0 else ())._replace(seq=n + 1, jobs=None)
        archive.take([Record(n, (START + 3600 * n) * S, (batch,))])
    assert archive.archiver.fold.state.count == 0


def test_hosts_that_are_silent_make_room_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "MOST_HOSTS", 4)
    monkeypatch.setattr(nodes, "FORGET", 1)
    archive = Archive(tmp_path / "a.sqlite")
    for n in range(1, 7):
        archive.take(records_of([tick(n, (n,) if n == 1 else (), f"n{n}")._replace(seq=1)], n))
    assert archive.archiver.counters()["rows_left_out"] == 0
    assert archive.archiver.fold.nodes.names[0] == "n1", "it has a job"
    assert {"n1", "n6"} <= set(archive.archiver.fold.nodes.names)


def test_hosts_keep_their_own_state_after_a_restart_whoever_was_forgotten(monkeypatch):
    monkeypatch.setattr(nodes, "MOST_HOSTS", 20)
    monkeypatch.setattr(nodes, "FORGET", 5)
    there, again = nodes.NodeFolds(), nodes.NodeFolds()
    for at, number in enumerate([*range(21), 2, 30]):  # 2 was forgotten, and comes again
        if (index := there.index(f"n{number}")) < 0:
            there.forget(())
            index = there.index(f"n{number}")
        there.heard(np.array([index]), np.array([at]), np.array([1000 + at]))
    again.unpack(*there.pack())
    states = [{name: one.rows[one.index(name)].tolist() for name in set(one.names)} for one in (there, again)]
    assert states[1] == {name: states[0][name] for name in states[1]} and len(states[1]) == 18


def test_a_second_batch_with_the_number_of_a_waiting_one_is_folded_too():
    order = Ordering()
    first, third, other = [
        Arrival(tick(n, off_s=off), 0, at, 0) for at, (n, off) in enumerate([(1, 0), (3, 0), (3, 9)])
    ]
    assert [*order.put(first), *order.put(third), *order.put(other)] == [first, other]
    assert [*order.release("n1")] == [third] and order._bytes == 0
