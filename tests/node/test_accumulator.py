from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.schema import Field, Schema
from colmet.node.accounting.accumulator import Accumulator, as_values

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


def test_a_missing_value_stays_missing_and_does_not_count_as_minus_one(totals):
    assert update(totals, {7: (-1, 5, 100, -1)}) == [-1, 5, 100, -1]
    assert update(totals, {7: (-1, 6, 100, -1), 8: (5, 1, 200, 3)}) == [5, 6, 100, 3]
    assert as_values(SCHEMA, np.array([-1, 1, 2, -1])) == {"cpu": None, "age": 1, "born": 2, "rss": None}


def test_a_thread_that_gets_its_processs_number_by_exec_is_counted_once_and_the_first_thread_stays():
    totals = Accumulator(SCHEMA, age="age", steady=("cpu",))
    assert update(totals, {10: (1500, 50, 100, 1), 12: (200, 40, 100, 1), 13: (3, 40, 100, 1)})[0] == 1703
    # 12 called exec: it is 10 now, as old as 10 was; all other threads have ended
    assert update(totals, {10: (210, 51, 100, 1)})[0] == 1500 + 210 + 3
    assert update(totals, {10: (300, 52, 100, 1)})[0] == 1500 + 300 + 3


task_lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 10), st.lists(st.integers(0, 1000), min_size=1, max_size=10)),
    max_size=12,
)


# Tasks whose end is reported, tasks that come from elsewhere, and totals that are restored


def end(totals, tasks, job=1):
    keys = np.array(list(tasks), dtype=np.int64)
    totals.end(job, keys, np.array(list(tasks.values()), dtype=np.int64).reshape(len(tasks), 4))


def test_what_tasks_had_used_before_they_came_is_taken_off(totals):
    update(totals, {7: (10, 5, 100, 30)})
    totals.subtract(1, np.array([[500, 70, 20, 9], [300, 1, 20, 9]]))
    assert update(totals, {7: (10, 6, 100, 30), 8: (500, 71, 20, 9), 9: (301, 2, 20, 9)}) == [11, 71, 20, 48]
    end(totals, {8: (510, 72, 20, 9)})
    assert update(totals, {7: (10, 7, 100, 30), 9: (301, 3, 20, 9)})[0] == 21
    totals.subtract(2, np.array([[50, 1, 1, 1]]))
    assert update(totals, {}, job=2) is None, "it has ended, and nothing is known of what it used here"
    totals.subtract(2, np.array([[-1, 1, 1, 1]]))
    assert update(totals, {8: (-1, 1, 1, 1)}, job=2)[0] == -1
    assert update(totals, {8: (-1, 1, 1, 1), 9: (60, 1, 1, 1)}, job=2)[0] == 10


def test_a_task_that_goes_on_under_the_number_of_one_that_was_reported_to_have_ended_is_counted_once():
    """Another thread than the first has called exec: the first one's end is reported, the thread's never is."""
    for heir, first in ((200, 1500), (1500, 200)):
        totals = Accumulator(SCHEMA, age="age", steady=("cpu",))
        update(totals, {10: (first, 50, 100, 1), 12: (heir, 40, 100, 1), 13: (3, 40, 100, 1)})
        end(totals, {10: (first + 1, 51, 100, 1), 13: (4, 41, 100, 1)})
        keys, values = np.array([10]), np.array([[heir + 10, 52, 100, 1]])
        assert totals.update(1, keys, values, reused=[10])[0] == first + 1 + 4 + heir + 10
        assert update(totals, {10: (heir + 20, 53, 100, 1)})[0] == first + 1 + 4 + heir + 20
        assert update(totals, {})[0] == first + 1 + 4 + heir + 20


def test_what_is_kept_goes_on_where_it_was(totals):
    assert totals.keep(1) is None and not totals.knows(1)
    update(totals, {7: (10, 5, 100, 30), 9: (20, 3, 90, 4)})
    totals.subtract(1, np.array([[3, 1, 1, 1]]))
    end(totals, {9: (25, 4, 90, 4)})
    kept = totals.keep(1)
    other = Accumulator(SCHEMA, age="age")
    other.restore(1, *kept)
    assert other.knows(1)
    for one in (totals, other):
        # 7 has ended while nobody looked, and 8 is new
        assert update(one, {8: (1, 1, 100, 2)}) == [10 + 25 - 3 + 1, 5, 90, 2]
        assert one.last_seen(1)[0].tolist() == [8]


def test_restored_totals_do_not_fall_below_what_was_sent_and_are_higher_once_they_have_caught_up(totals):
    floor = np.array([100, 50, 90, 7])
    totals.restore(
        1, np.array([[40, 5, 95, -1], [0, 0, 0, 0]]), np.empty(0, np.int64), np.empty((0, 4), np.int64), floor
    )
    assert update(totals, {7: (10, 6, 100, 3)}) == [100, 50, 95, 3]
    assert update(totals, {7: (70, 60, 100, 3)}) == [110, 60, 95, 3]
    assert update(totals, {}) == [110, 60, 95, 0]


@pytest.mark.slow
@given(task_lives, st.lists(st.sampled_from(["tick", "tick", "restart", "end", "end low"]), min_size=30, max_size=30))
def test_counters_never_go_down_and_are_exact_whether_ends_are_reported_or_not_also_over_a_restart(lives, happens):
    """Tasks are reported to have ended with a little more than was seen, or less, or are just gone; some come used."""
    totals = Accumulator(SCHEMA, age="age")
    tasks = []
    for number, (start, used, growth) in enumerate(lives):
        tasks.append((number, start, used * 100, np.cumsum(growth).tolist()))
    expected, before = 0, 0
    seen = {}
    for tick, what in enumerate(happens):
        alive = {}
        for number, start, used, grown in tasks:
            if tick == start and used:
                totals.subtract(1, np.array([[used, 1, start, 1]]))
                expected -= used
            if start <= tick < start + len(grown):
                alive[number] = (used + grown[tick - start], 1 + tick - start, start, 1)
        ended = {number: seen.pop(number) for number in list(seen) if number not in alive}
        if ended and what.startswith("end"):
            more = 7 if what == "end" else -3
            end(totals, {number: (max(0, cpu + more), *rest) for number, (cpu, *rest) in ended.items()})
            expected += sum(max(cpu, cpu + more) for cpu, *_ in ended.values())
        else:
            expected += sum(cpu for cpu, *_ in ended.values())
        if what == "restart" and totals.keep(1) is not None:
            kept = totals.keep(1)
            totals = Accumulator(SCHEMA, age="age")
            totals.restore(1, *kept)
        seen.update(alive)
        row = update(totals, alive)
        if row is not None:
            assert row[0] == expected + sum(cpu for cpu, *_ in seen.values()) >= before
            before = row[0]
