"""No reader draws or adds up what cannot have been, whatever rows come: restarts, jumps, two senders, clock steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colmet.commands import plot
from colmet.common.errors import ColmetError
from colmet.common.live.latest_tables import LatestTables
from colmet.common.live.summary import JOB_TABLES, NODE_TABLES, measure_jobs, measure_nodes
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.jobs.report.rows import gather
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import NODE
from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.series_query import SeriesQuery
from colmet.web.store import StoreReader
from tests.support.made_up_history import START, MadeUp

pytestmark = pytest.mark.slow

JOB, HOST, NS = 42, "n1", 10**9
LITTLE = 1 + 1e-5  # the page rounds to 6 digits

EVENTS = ("restart", "wrap", "jump", "back", "ahead", "twice", "missing", "late")


@st.composite
def counters(draw):
    """CPUs, and readings of one counter of CPU time as a store has them: by time, seconds and nanoseconds.

    Each sender's counter grows by what its CPUs can do, but for its events.
    """
    cpus = draw(st.integers(1, 8))
    period = draw(st.sampled_from([1, 5, 60]))
    rows = []
    for offset in draw(st.sampled_from([[0], [0], [0, 0], [0, period // 2]])):
        at, value = START + period + offset, draw(st.sampled_from([0, 1, 10**6])) * NS
        skew, late = 0, []
        for share, event in draw(
            st.lists(
                st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([*[""] * 12, *EVENTS])),
                min_size=2,
                max_size=30,
            )
        ):
            at += period
            value += int(share * cpus * period * NS)
            if event == "restart":
                value = 0
            elif event == "wrap":
                value %= 1 << 32
            elif event == "jump":
                value += draw(st.integers(10**9, 10**18))
            elif event in ("back", "ahead"):
                skew += (-1 if event == "back" else 1) * draw(st.integers(1, 600))
            row = (at + skew, -1 if event == "missing" else value)
            (late if event == "late" else rows).append(row)
            rows += [row] * (event == "twice")
        rows += late
    return cpus, sorted(rows, key=lambda row: row[0])


def stored(cpus, rows, began=START):
    """These readings as a job's CPU time and waits, and as the node's."""
    history = MadeUp()
    times = [max(at, 1) for at, _ in rows]
    values = np.array([value for _, value in rows], np.int64)
    cgroup = {"cpus_allocated": cpus, "pids_peak": cpus, "cpu_usage": values, "cpu_user": values}
    history.add(JOB, "cgroup_default", HOST, times, user=b"alice", **cgroup)
    waits = {f"{name}_delay_total": values for name in ("cpu", "blkio", "swapin", "freepages")}
    history.add(JOB, "taskstats_default", HOST, times, ac_btime=began, cpu_total=values, read_bytes=values, **waits)
    jiffies = np.where(values < 0, -1, values // 10**7)
    states = {f"stat_cpu_{name}": 0 for name in ("nice", "system", "irq", "softirq", "iowait")}
    states = {**states, "stat_cpu_user": jiffies, "stat_cpu_idle": jiffies}
    history.add(NODE, "procstats_default", HOST, times, stat_cpus=cpus, involved_jobs=b"[42]", **states)
    zone = {"zone": b"package-0", "name": b"package-0", "energy": np.where(values < 0, -1, values // 1000)}
    history.add(NODE, "raplzones_default", HOST, times, **zone)
    return history


def assert_rates(values, most):
    known = np.array([value for value in values if value is not None], np.float64)
    known = known[~np.isnan(known)]
    assert (known >= 0).all() and (known <= most * LITTLE).all(), (known.min(), known.max(), most)


@given(counters())
def test_the_report(made):
    cpus, rows = made
    report = gather(stored(cpus, rows), JobInterval(JOB), START + 10**6)
    wall_s = report.wall_s + 2  # whole seconds
    assert report.cpu.used_s is None or 0 <= report.cpu.used_s <= cpus * wall_s
    for ratio, most in ((report.cpu.used_ratio, 1), (report.cores, cpus), (report.hosts[0].cpu_used_ratio, 1)):
        assert_rates([ratio], most)
    for wait_s in (report.time.waiting_cpu_s, report.time.block_io_s, report.time.swap_s, report.time.reclaim_s):
        assert wait_s is None or 0 <= wait_s <= cpus * wall_s
    for curve in report.curves:
        for line in curve.lines:
            assert_rates(line.values, {"cpu": cpus, "waiting": cpus}.get(curve.name, np.inf))
    energy = report.energy
    if energy.nodes_joules is not None:
        assert 0 <= (energy.job_joules or 0) <= energy.nodes_joules * LITTLE + 1e-6
        assert energy.nodes_joules <= 5000 * 2 * wall_s
        assert min(energy.nobody_joules or 0, energy.others_joules or 0, energy.unshared_joules) >= -1e-3


@settings(max_examples=15)
@example((1, [(START + 10, 5 * NS), (START + 15, 10 * NS), (START + 19, 15 * NS), (START + 24, 0)]), START)
@example(
    (1, [(START + 1, 0), (START + 2, NS), (START + 2, 10**6 * NS), (START + 3, 0), (START + 5, 10**6 * NS)]), START
)
@given(counters(), st.sampled_from([START, 4]))
def test_a_sum_of_the_report_never_falls_as_rows_come(made, began):
    cpus, rows = made
    used = []
    for count in range(2, len(rows) + 1):
        if count == len(rows) or rows[count][0] > rows[count - 1][0]:  # all rows of its last second
            report = gather(stored(cpus, rows[:count], began), JobInterval(JOB), START + 10**6)
            used += [(report.cpu.used_s or 0, report.io.read_bytes or 0)]
    for before, after in zip(used, used[1:]):
        assert after[0] >= before[0] - 1e-6 and after[1] >= before[1]


@given(counters())
def test_a_plot(made):
    cpus, rows = made
    history = stored(cpus, rows)
    for job, name in (
        (JOB, "cpu_usage"),
        (JOB, "cpu_delay_total"),
        (JOB, "blkio_delay_total"),
        (NODE, "stat_cpu_user"),
    ):
        try:
            (plotted,) = plot.gather(history, job, [name])
        except ColmetError:  # nothing can be drawn
            continue
        for line in plotted.lines:
            assert_rates(line.values, cpus)


CURVES = (
    (JOB, "cgroup_default", "cpu_usage"),
    (JOB, "taskstats_default", "cpu_delay_total"),
    (JOB, "taskstats_default", "blkio_delay_total"),
    (NODE, "procstats_default", "stat_cpu_user"),
)


@given(counters(), st.sampled_from([2, 7, 300]), st.sampled_from(["mean", "max", "last"]))
def test_a_curve_of_the_page_from_the_store(made, points, fold):
    cpus, rows = made
    known = Queries(RecentCache(1 << 20, 3600), StoreReader(lambda: stored(cpus, rows)))
    for job, table, column in CURVES:
        asked = SeriesQuery(job, table, column, HOST, START - 10**4, START + 10**5, points, fold, True, "stored")
        for one in (known.series(asked) or {"series": []})["series"]:
            assert_rates(one["values"], cpus)
        together = (known.series(asked._replace(together=True)) or {"together": None})["together"]
        for name in ("sum", "mean", "min", "max") if together else ():
            assert_rates(together[name], cpus)  # of one host


def declared(name, **columns):
    scope = "node" if name in NODE_TABLES else "job"
    return Schema(name, scope, tuple(Field(column, unit, kind, "") for column, (unit, kind) in columns.items()))


SCHEMAS = {
    "cgroup_default": declared(
        "cgroup_default", cpu_usage=("nsec", "counter"), cpus_allocated=("count", "gauge"), pids_peak=("count", "gauge")
    ),
    "taskstats_default": declared(
        "taskstats_default", cpu_delay_total=("nsec", "counter"), blkio_delay_total=("nsec", "counter")
    ),
    "procstats_default": declared(
        "procstats_default",
        **{f"stat_cpu_{name}": ("jiffies", "counter") for name in ("user", "idle")},
        stat_cpus=("count", "gauge"),
    ),
}


def batches(cpus, rows):
    """The rows as nodes send them, in the order in which they come."""
    for n, (at, value) in enumerate(rows):
        tables = []
        for name, schema in SCHEMAS.items():
            packed = schema.empty_rows(1)
            packed["job_id"] = NODE if name in NODE_TABLES else JOB
            for field in schema.fields:
                if field.kind == "gauge":
                    packed[field.name] = cpus
                else:
                    packed[field.name] = value if field.unit == "nsec" or value < 0 else value // 10**7
            tables.append(Table(schema, max(at, 1) * NS, packed.tobytes()))
        yield Batch(HOST, 1, n + 1, max(at, 1) * NS, (JOB,), tuple(tables))


@given(counters(), st.sampled_from([2, 7, 300]), st.randoms(use_true_random=False))
def test_a_curve_of_the_page_from_memory(made, points, random):
    cpus, rows = made
    memory = RecentCache(1 << 20, 10**9, lambda: 1000.0, lambda: START + 10**5)
    found = list(batches(cpus, rows))
    swapped = random.randrange(len(found))
    found[swapped:] = reversed(found[swapped:])  # out of order
    memory.take(found)
    known = Queries(memory, None)
    for job, table, column in CURVES:
        asked = SeriesQuery(job, table, column, HOST, 0, START + 10**6, points, "mean", True, "memory")
        for one in (known.series(asked) or {"series": []})["series"]:
            assert_rates(one["values"], cpus)


@given(counters())
def test_top_and_what_the_page_shows_now(made):
    cpus, rows = made
    watch = LatestTables((*JOB_TABLES, *NODE_TABLES), monotonic=lambda: 1000.0)
    watch.look()
    for batch in batches(cpus, rows):
        watch.take([batch])
        kept = watch.look()
        values = measure_jobs(kept).values
        for key in ("cpu", "wait_cpu", "wait_io"):
            assert_rates(values[key], cpus)
        for row in measure_nodes(kept, 1000.0, START * NS, {}):
            assert_rates([row["cpu"], row["iowait"]], 1)


def test_of_two_senders_neither_is_a_spike_nor_a_sum():
    """A node with 2 CPUs that is busy with one, and another of its name that has been up for longer."""
    times = np.arange(START, START + 600, 5)
    one, other = (times - START) * NS, 10**6 * NS + (times - START) * NS // 2
    rows = sorted([*zip(times.tolist(), one.tolist()), *zip((times + 2).tolist(), other.tolist())])
    history = stored(2, rows)
    report = gather(history, JobInterval(JOB), START + 10**6)
    assert report.cpu.used_s <= 600 and "more CPU time than its CPUs can have run" in report.warnings[0]
    assert report.io.read_bytes <= other[-1], "one of them, not the sum of leaps from one to the other"
    for curve in report.curves:
        assert curve.name not in ("read", "written") or np.nanmax(curve.lines[0].values) <= NS * LITTLE


def test_a_counter_of_bytes_without_a_bound_has_no_spike_either():
    history = MadeUp()
    low = [100 * n for n in range(40)]
    times = START + 5 * np.arange(60)
    values = [*low[:10], *itertools.chain(*[(10**12 + 50 * n, low[10 + n]) for n in range(20)]), *low[30:]]
    history.add(JOB, "taskstats_default", HOST, times, ac_btime=START, read_bytes=values)
    (plotted,) = plot.gather(history, JOB, ["read_bytes"])
    assert np.nanmax(plotted.lines[0].values) <= 20
    assert np.isnan(plotted.lines[0].values).any() and not np.isnan(plotted.lines[0].values).all()


@pytest.mark.parametrize("way", ["restart", "state lost"])
def test_what_a_counter_that_begins_again_counts_is_there(way):
    """Its rate is missing in the interval of the restart alone."""
    history = MadeUp()
    lost = 0 if way == "restart" else 7
    used = np.array([5 * (n if n < 60 else n - 60 + lost) for n in range(121)]) * NS
    history.add(JOB, "cgroup_default", HOST, START + 5 * np.arange(121), cpu_usage=used, cpus_allocated=4)
    (plotted,) = plot.gather(history, JOB, ["cpu_usage"])
    values = plotted.lines[0].values
    assert np.flatnonzero(np.isnan(values)).tolist() == [59] and np.allclose(values[~np.isnan(values)], 1)


@pytest.mark.parametrize("ends", [120, 900])
def test_growth_counts_once_while_a_clock_is_set_forward(ends):
    """By an hour from reading 40 to 60; an hour later, two readings may have one time."""
    count = np.arange(ends)
    times = START + 5 * count + np.where((count >= 40) & (count < 60), 3600, 0)
    rows = sorted(zip(times.tolist(), (5 * count * NS).tolist()))
    report = gather(stored(2, rows), JobInterval(JOB), START + 10**6)
    assert report.cpu.used_s == pytest.approx(5 * (ends - 1), abs=5)
    assert report.io.read_bytes == pytest.approx(5 * (ends - 1) * NS, abs=5 * NS)
