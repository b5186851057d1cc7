"""Pauses between retries, token buckets, and shares: one sender fills no more of a store than it leaves to others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.daemon.pacing import Backoff, Shares, TokenBucket, growing_pause_s
from tests.support.waiting import Clock


def test_pauses_double_up_to_the_longest():
    assert [growing_pause_s(n, 1.0, 60.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert growing_pause_s(10**6, 0.5, 30.0) == 30.0


def test_a_try_is_due_after_its_pause_and_a_success_starts_over():
    clock = Clock()
    backoff = Backoff(2.0, 8.0, clock)
    assert backoff.is_due() and backoff.left_s() == 0
    assert backoff.fail() == 2.0 and not backoff.is_due()
    clock.now += 1.5
    assert backoff.left_s() == 0.5
    clock.now += 0.5
    assert backoff.is_due()
    assert [backoff.fail() for _ in range(3)] == [4.0, 8.0, 8.0]
    backoff.reset()
    assert backoff.is_due() and backoff.fail() == 2.0


def test_a_bucket_is_used_up_and_fills_again():
    clock = Clock()
    bucket = TokenBucket(2.0, 10.0, clock)
    bucket.use(12)
    assert bucket.left() == -2 and bucket.wait_s() == 1.5
    clock.now += 1.5
    assert bucket.left() == 1 and bucket.wait_s() == 0
    clock.now += 100
    assert bucket.left() == 10, "no more than at once"
    bucket.limit(2.0, 4.0)
    assert bucket.left() == 4


def test_an_infinite_bucket_limits_nothing():
    bucket = TokenBucket(math.inf, math.inf, Clock())
    bucket.use(1e12)
    assert bucket.left() == math.inf and bucket.wait_s() == 0


def fill(shares, sender, step=1):
    """Have a sender hold all that it may; how much that is."""
    held = 0
    while shares.room(sender) >= step:
        shares.hold(sender, step)
        held += step
    return held


@pytest.mark.parametrize(("greedy", "each"), [(1, 500), (3, 250), (9, 100)])
def test_each_of_those_that_want_all_gets_as_much_as_is_left_free(greedy, each):
    shares = Shares(1000)
    senders = [f"s{n}" for n in range(greedy)]
    for _ in range(1000):
        for sender in senders:
            if shares.room(sender) >= 1:
                shares.hold(sender, 1)
    assert all(shares._held[sender] == pytest.approx(each, abs=2) for sender in senders)
    assert fill(shares, "late") > each / 3


def test_what_is_nobodys_counts_and_has_all_the_room():
    shares = Shares(1000)
    assert shares.room("") == 1000
    shares.hold("", 900)
    assert (shares.room(""), shares.room("a")) == (100, 50)
    shares.hold("", -900)
    assert shares.room("a") == 500


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-50, 50)), max_size=60))
def test_what_is_held_adds_up_and_leaves_nothing_behind(steps):
    shares, held = Shares(1000), dict.fromkeys("abc", 0)
    for sender, amount in steps:
        amount = max(amount, -held[sender])
        shares.hold(sender, amount)
        held[sender] += amount
    assert shares.total == sum(held.values())
    for sender, amount in held.items():
        shares.hold(sender, -amount)
    assert shares.total == 0 and not shares._held


# -- of a store that drops its oldest --


def test_one_alone_may_have_all_of_it_and_of_two_one_that_holds_far_more_than_the_other_may_not():
    shares = Shares(1000)
    shares.hold("a", 1000)
    assert not shares.exceeds("a", 10)
    shares.hold("b", 10)
    assert shares.exceeds("a") and not shares.exceeds("b", 10)
    shares.hold("a", -900)
    assert not shares.exceeds("a", 10), "there is room"


def test_where_all_hold_much_nobody_exceeds():
    shares = Shares(1000)
    for n in range(10):
        shares.hold(f"n{n}", 70 + 6 * n)
    assert not any(shares.exceeds(f"n{n}", 5) for n in range(10))
    shares.hold("greedy", 500)
    assert [n for n in (*range(10), "greedy") if shares.exceeds(f"n{n}" if n != "greedy" else n)] == ["greedy"]
