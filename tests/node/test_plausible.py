"""Waits that a task cannot have had are dropped, and only these."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.schema import Field, Schema
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


def test_growth_by_the_uptime_is_left_out_counted_and_does_not_spoil_what_comes(job):
    assert job({7: (5, S)}) == [S]
    assert job({7: (10, S + UPTIME)}) == [S]
    assert (job.waits.dropped, job.waits.largest_ns) == (1, UPTIME)
    assert job({7: (15, S + UPTIME + 3 * S)}) == [4 * S]
    assert job({7: (20, S + 2 * UPTIME + 3 * S)}) == [4 * S]
    assert job.end({7: (22, S + 2 * UPTIME + 4 * S)}) == [5 * S]
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
