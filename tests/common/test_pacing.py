"""Pauses between retries, and token buckets."""

from __future__ import annotations

import math

from colmet.common.daemon.pacing import Backoff, TokenBucket, growing_pause_s
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
