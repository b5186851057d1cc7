"""Waits that a task cannot have had are dropped, and only these."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.schema import MISSING_INT, Field, Schema
from colmet.node.accounting.plausible import PlausibleWaits

S = 1_000_000_000
UPTIME = 1_345_531_900_817
SCHEMA = Schema("t_default", "job", [Field("age", "usec", "counter"), Field("wait", "nsec", "counter")])


def arrays(tasks):
    """{task: (age in s, wait in ns)}."""
    keys = np.array(sorted(tasks), dtype=np.int64)
    rows = [(round(tasks[key][0] * 1e6), tasks[key][1]) for key in sorted(tasks)]
    return keys, np.array(rows, dtype=np.int64).reshape(len(rows), 2)


class Job:
    def __init__(self):
        self.waits = PlausibleWaits(SCHEMA, "age", ["wait"])

    def __call__(self, tasks):
        return self.waits.update(1, *arrays(tasks))[:, 1].tolist()

    def end(self, tasks):
        return self.waits.end(1, *arrays(tasks))[:, 1].tolist()


@pytest.fixture
def job():
    return Job()


def test_what_a_task_can_have_waited_is_not_touched(job):
    assert job({7: (10, 4 * S), 9: (1, 0)}) == [4 * S, 0]
    assert job({7: (15, 9 * S), 9: (6, 5 * S)}) == [9 * S, 5 * S]
    assert job.end({9: (6.5, 5 * S + 1)}) == [5 * S + 1]
    assert job.waits.dropped == 0


def test_a_wait_longer_than_the_time_between_two_readings_counts_where_the_kernel_counts_rightly(job):
    for age in (5, 10, 15, 20):
        assert job({7: (age, 0)}) == [0]
    assert job({7: (25, 20 * S)}) == [20 * S]
    assert job.waits.dropped == 0


def test_growth_by_the_uptime_is_left_out_counted_and_does_not_spoil_what_comes(job):
    assert job({7: (5, S)}) == [S]
    assert job({7: (10, S + UPTIME)}) == [S]
    assert (job.waits.dropped, job.waits.largest_ns) == (1, UPTIME)
    assert job({7: (15, S + UPTIME + 3 * S)}) == [4 * S]
    assert job({7: (20, S + 2 * UPTIME + 3 * S)}) == [4 * S]
    assert job.end({7: (22, S + 2 * UPTIME + 4 * S)}) == [5 * S]
    assert job.waits.dropped == 2


def test_the_first_reading_of_a_task_counts_by_its_age_also_at_its_end(job):
    assert job({7: (0.5, UPTIME), 8: (0.5, S // 2)}) == [0, S // 2]
    assert job.end({9: (0.001, UPTIME), 10: (2, S)}) == [0, S]
    assert job.waits.dropped == 2


def test_once_the_kernel_has_counted_wrongly_a_task_waits_no_longer_than_between_its_readings(job):
    job({7: (100, 0), 8: (0.1, UPTIME)})
    assert job({7: (105, 60 * S), 8: (5.1, UPTIME + S)}) == [0, S]
    assert job({7: (110, 64 * S), 8: (10.1, UPTIME + S)}) == [4 * S, S]


def test_clocks_that_differ_by_a_tick_are_no_reason_to_leave_out(job):
    assert job({7: (1, S + 9_000_000)}) == [S + 9_000_000]
    assert job({7: (10_001, 10_000 * S)}) == [10_000 * S]
    assert job.waits.dropped == 0


def test_another_task_of_the_same_number_is_judged_by_its_own_age(job):
    job({7: (100, 50 * S)})
    assert job({7: (2, S)}) == [S]
    assert job({7: (3, S // 2)}) == [S // 2], "its counters went down: a thread that called exec has its number"
    assert job({7: (4, UPTIME)}) == [S // 2]


def test_missing_values_stay_missing(job):
    assert job({7: (100, MISSING_INT), 8: (1, UPTIME)}) == [MISSING_INT, 0]
    assert job({7: (101, 2 * S), 8: (2, UPTIME)}) == [2 * S, 0]
    assert job({7: (102, MISSING_INT), 8: (3, MISSING_INT)}) == [MISSING_INT, MISSING_INT]


def test_values_that_were_given_are_not_changed_in_place(job):
    keys, values = arrays({7: (1, UPTIME)})
    job.waits.update(1, keys, values)
    assert values[0, 1] == UPTIME


def test_jobs_are_forgotten(job):
    job({7: (1, UPTIME)})
    job.waits.forget(1)
    assert job.waits.excess(1, np.array([7])).tolist() == [[0]]
    job({7: (1, UPTIME)})
    job.waits.keep_only({2})
    assert job.waits.excess(1, np.array([7])).tolist() == [[0]]


def test_what_was_left_out_stays_so_after_a_restart(job):
    keys, values = arrays({7: (1, S), 8: (2000, 0)})
    job.waits.update(1, keys, values)
    values = values + np.array([5_000_000, UPTIME])
    corrected = job.waits.update(1, keys, values)
    assert corrected[:, 1].tolist() == [S, 0], "of the older task it would be possible, but the kernel counts wrongly"
    other = Job()
    other.waits.restore(1, keys, corrected, job.waits.excess(1, keys))
    values = values + np.array([5_000_000, S])
    assert other.waits.update(1, keys, values)[:, 1].tolist() == (corrected[:, 1] + S).tolist()
    assert other.waits.dropped == 0


steps = st.tuples(
    st.floats(0.001, 10),  # seconds until the next reading
    st.floats(0, 1),  # share of them that it waited
    st.sampled_from([0, 0, 0, 1, 2, 40 * S, UPTIME, 3 * UPTIME]),  # what the kernel adds
    st.booleans(),  # the task ends
)


@given(st.lists(steps, max_size=40))
def test_no_history_makes_a_wait_longer_than_the_task_lived_or_a_total_that_falls(history):
    job = Job()
    age = raw = last = 0
    for seconds, share, jump, ends in history:
        age += round(seconds, 6)
        raw += int(seconds * share * S) + jump
        (now,) = (job.end if ends else job)({7: (age, raw)})
        assert last <= now <= age * S * 1.001 + 10_000_000
        if job.waits.dropped:
            assert now - last <= seconds * S * 1.001 + 11_000_000
        last = now
        if ends:
            job({})
            age = raw = last = 0
