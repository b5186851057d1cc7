"""When each rule holds, and what its text is."""

from __future__ import annotations

import pytest

from colmet.jobs.columns import RUNNING
from colmet.jobs.summary_report import report_of
from colmet.notices import rules
from colmet.notices.rules import RULES, TOTALS, Case, TotalsReading, is_judged
from tests.support.notice_jobs import GIB, HOUR, NOW, failed, idle, job


def case(row, *readings, hosts=(), shared=False):
    """A case with earlier readings: (seconds ago, values)."""
    row = {name: row.get(name) for name in rules.COLUMNS} | row
    row["state"] = row["state"] or RUNNING
    known = [TotalsReading(row["last"] - ago, tuple(values.get(name) for name in TOTALS)) for ago, values in readings]

    def earlier(time):
        return max([one for one in known if one.time <= time], key=lambda one: one.time, default=None)

    return Case(row, earlier, lambda: report_of(row, [{**row, **one} for one in hosts]), lambda: shared)


def text(name, *arguments, **more):
    return RULES[name].text(case(*arguments, **more))


def test_a_job_that_used_next_to_nothing_since_it_began_an_hour_ago_is_idle():
    found = text("idle", idle(age_s=HOUR + 60))
    assert found.startswith("Almost idle: used 0.00 of 4 cores in the last 1 h 0 min.")
    assert text("idle", idle(age_s=HOUR - 60)) is None


def test_only_the_last_hour_counts():
    late = job(age_s=10 * HOUR, core_s=40 * HOUR, cpu_s=8.0 * HOUR)
    before = {"core_s": 36.0 * HOUR, "cpu_s": 8.0 * HOUR - 10}
    assert "in the last 1 h 1 min" in text("idle", late, (HOUR + 60, before))
    assert text("idle", late, (HOUR - 60, before)) is None  # that reading is too young, and since its start it was busy
    woken = job(age_s=10 * HOUR, core_s=40 * HOUR, cpu_s=1.0 * HOUR)
    assert text("idle", woken, (HOUR + 60, {"core_s": 36.0 * HOUR, "cpu_s": 10.0})) is None


@pytest.mark.parametrize(
    "values",
    [
        {"cpu_s": None},
        {"core_s": None},
        {"cpu_s": 0.03 * 8 * HOUR},  # 3 %
        {"core_s": 1280.0 * HOUR},  # it used more than its 4 cores: all CPUs of the node count
        {"calls_read_bytes": 20 << 30},  # it copies
        {"gpu_s": 2.0 * HOUR, "gpu_busy_s": 1.0 * HOUR},  # its GPU computes
    ],
)
def test_an_unknown_a_copying_and_a_computing_job_are_not_idle(values):
    assert text("idle", idle()) is not None
    assert text("idle", idle(**values)) is None


def test_gpus_without_use_and_gpus_without_a_process_are_idle():
    held = {"gpu_s": 8.0 * HOUR, "gpus": 4}
    assert "its 4 GPUs were used 2 %." in text("gpu-idle", job(**held, gpu_busy_s=0.16 * HOUR))
    found = text("gpu-idle", job(**held, gpu_busy_s=2.0 * HOUR, gpu_idle_s=6.0 * HOUR))
    assert "used 25 %, without a process 75 % of the time" in found
    assert text("gpu-idle", job(**held, gpu_busy_s=4.0 * HOUR, gpu_idle_s=0.0)) is None
    assert text("gpu-idle", job(**held)) is None  # neither is known
    one = {"gpu_s": 2.0 * HOUR, "gpu_idle_s": 2.0 * HOUR}
    assert "without a process 100 %" in text("gpu-idle", job(**one))
    assert text("gpu-idle", job(**one, gpu_busy_s=1.9 * HOUR)) is None, "a process outside of the job uses it"
    assert text("gpu-idle", job(**held, gpu_busy_s=7.6 * HOUR, gpu_idle_s=8.0 * HOUR)) is None
    assert text("gpu-idle", job()) is None
    assert "its GPU was" in text("gpu-idle", job(gpu_s=2.0 * HOUR, gpu_busy_s=0.0))


def test_page_cache_is_not_memory_near_its_limit():
    full = job(memory_ratio=1.0, memory_peak=8 * GIB, memory_limit=8 * GIB, memory_anon_peak=GIB)
    assert text("memory-high", full, hosts=[{"host": "node1"}]) is None
    two = [{"host": "node1"}, {"host": "node2", "memory_anon_peak": int(7.5 * GIB)}]
    found = text("memory-high", full, hosts=two)
    assert found.startswith("Needed 7.50 GiB of 8.00 GiB of memory on node2.")


def test_a_process_that_was_killed_for_memory_is_noted_of_a_running_job():
    found = text("memory-high", job(oom_kills=2, memory_ratio=0.5), hosts=[{"host": "node1"}])
    assert found.startswith("The kernel killed 2 processes for lack of memory")


def test_metadata_operations_are_counted_by_second_and_blamed_on_nobody_else():
    heavy = job(age_s=HOUR, lustre_metadata_ops=5000 * HOUR)
    assert "files on Lustre 5,042 times a second in the last 59 min 30 s. All" in text("metadata", heavy)
    assert "other jobs on its nodes" in text("metadata", heavy, shared=True)
    assert RULES["metadata"].only_administrators(case(heavy, shared=True))
    assert not RULES["metadata"].only_administrators(case(heavy))
    assert text("metadata", job(age_s=HOUR, lustre_metadata_ops=500 * HOUR)) is None
    assert text("metadata", job(age_s=HOUR)) is None
    late = job(age_s=10 * HOUR, lustre_metadata_ops=2_000_000)
    assert text("metadata", late, (900, {"lustre_metadata_ops": 0})) is not None  # 2,222 a second


@pytest.mark.parametrize(
    ("values", "begins"),
    [
        ({}, "Failed after 1 min 30 s (exit code 127)."),
        ({"exit_code": 0, "exit_signal": 11}, "Failed after 1 min 30 s (signal 11)."),
        ({"exit_code": None}, "Failed after 1 min 30 s (no exit code)."),
        ({"state": "out_of_memory"}, "Killed for lack of memory after 1 min 30 s."),
        ({"state": "node_failed"}, "Lost a node after 1 min 30 s."),
        ({"state": "done"}, None),
        ({"state": "cancelled"}, None),
        ({"state": "timeout"}, None),
        ({"ran_s": 301}, None),
    ],
)
def test_a_job_that_failed_soon_after_its_start(values, begins):
    found = text("failed-early", failed(**values))
    assert found is None if begins is None else found.startswith(begins)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"is_running": 0}, False),
        ({"state": "done"}, False),
        ({"ended": NOW - 5}, False),
        ({"last": NOW - 3600}, False),  # no rows: its node or the collector is away
        ({"last": None}, False),
    ],
)
def test_only_a_job_that_runs_by_all_accounts_is_judged(values, expected):
    row = {"state": RUNNING, "ended": None, **job(), **values}
    assert is_judged(row, NOW) is expected
