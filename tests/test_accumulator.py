from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.schema import Field, Schema
from colmet.node.accumulator import Accumulator, as_values

SCHEMA = Schema(
    "t_default",
    "job",
    [
        Field("cpu", "nsec", "counter"),
        Field("age", "usec", "counter", fold="max"),
        Field("born", "ts_date", "counter", fold="min"),
        Field("rss", "kbytes", "gauge"),
    ],
)


def update(totals, tasks, job=1, inherited=()):
    keys = np.array(sorted(tasks), dtype=np.int64)
    values = np.array([tasks[key] for key in sorted(tasks)], dtype=np.int64).reshape(len(tasks), 4)
    row = totals.update(job, keys, values, inherited)
    return None if row is None else row.tolist()


@pytest.fixture
def totals():
    return Accumulator(SCHEMA, age="age")


def test_each_field_is_folded_as_the_schema_says(totals):
    assert update(totals, {7: (10, 5, 100, 30), 9: (20, 3, 90, 4)}) == [30, 5, 90, 34]


def test_a_job_that_never_had_a_task_has_no_row(totals):
    assert update(totals, {}) is None


def test_what_an_ended_task_had_stays_in_counters_and_leaves_gauges(totals):
    update(totals, {7: (10, 5, 100, 30), 9: (20, 3, 90, 4)})
    assert update(totals, {7: (11, 6, 100, 31)}) == [31, 6, 90, 31]
    assert update(totals, {}) == [31, 6, 90, 0]


def test_a_task_number_that_is_used_again_is_a_new_task(totals):
    update(totals, {7: (10, 5000, 100, 30)})
    assert update(totals, {7: (1, 10, 105, 2)}) == [11, 5000, 100, 2]


def test_values_that_another_task_has_taken_over_are_not_counted_twice(totals):
    update(totals, {7: (10, 5, 100, 1), 9: (20, 3, 90, 1)})
    assert update(totals, {7: (30, 6, 100, 1)}, inherited={9})[0] == 30


def test_a_missing_value_stays_missing_and_does_not_count_as_minus_one(totals):
    assert update(totals, {7: (-1, 5, 100, -1)}) == [-1, 5, 100, -1]
    assert update(totals, {7: (-1, 6, 100, -1), 8: (5, 1, 200, 3)}) == [5, 6, 100, 3]
    assert as_values(SCHEMA, np.array([-1, 1, 2, -1])) == {"cpu": None, "age": 1, "born": 2, "rss": None}


def test_jobs_are_kept_apart_and_forgotten_when_told(totals):
    update(totals, {7: (10, 5, 100, 1)}, job=1)
    assert update(totals, {8: (1, 1, 1, 1)}, job=2) == [1, 1, 1, 1]
    totals.keep_only({2})
    assert update(totals, {}, job=1) is None


def test_a_thread_that_takes_over_its_processs_number_by_exec_is_counted_once_and_the_first_thread_stays():
    totals = Accumulator(SCHEMA, age="age", steady=("cpu",))
    assert update(totals, {10: (1500, 50, 100, 1), 12: (200, 40, 100, 1), 13: (3, 40, 100, 1)})[0] == 1703
    # 12 called exec: it is 10 now, as old as 10 was; all other threads have ended
    assert update(totals, {10: (210, 51, 100, 1)})[0] == 1500 + 210 + 3
    assert update(totals, {10: (300, 52, 100, 1)})[0] == 1500 + 300 + 3


task_lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 10), st.lists(st.integers(0, 1000), min_size=1, max_size=10)),
    max_size=12,
)


@given(task_lives)
def test_counters_never_go_down_and_end_as_the_sum_over_all_tasks_last_values(lives):
    """Tasks with numbers that are used again, each living some ticks from some start."""
    totals = Accumulator(SCHEMA, age="age")
    alive_at = {}
    for start, number, growth in lives:
        ticks = range(start, start + len(growth))
        if any(number in alive_at.get(tick, {}) for tick in range(start - 1, start + len(growth) + 1)):
            continue
        for tick, cpu in zip(ticks, np.cumsum(growth).tolist()):
            # age grows with the task, so a new task with this number is younger than the old one was
            alive_at.setdefault(tick, {})[number] = (cpu, 1 + tick - start, start, 1)
    expected, before, seen = 0, 0, {}
    for tick in range(40):
        alive = alive_at.get(tick, {})
        row = update(totals, alive)
        for number in list(seen):
            if number not in alive:
                expected += seen.pop(number)
        seen.update({number: values[0] for number, values in alive.items()})
        if row is not None:
            assert row[0] == expected + sum(seen.values()) >= before
            before = row[0]
