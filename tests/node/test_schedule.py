from __future__ import annotations

import pytest

from colmet.node.schedule import Every, Schedule


class WallClock:
    def __init__(self, wall=1000.25):
        self.now = 500.0
        self.offset = wall - self.now

    def monotonic(self):
        return self.now

    def wall(self):
        return self.now + self.offset


def schedule(clock, period):
    return Schedule(period, clock.monotonic, clock.wall)


def test_the_first_tick_is_at_a_multiple_of_the_period_of_the_wall_clock():
    clock = WallClock(wall=1000.25)
    assert schedule(clock, 5).delay_s() == pytest.approx(4.75)


def test_ticks_stay_on_the_grid_however_late_each_is_taken():
    clock = WallClock(wall=1000.0)
    ticks = schedule(clock, 1)
    for n in range(100):
        clock.now += ticks.delay_s()
        assert clock.wall() == pytest.approx(1000 + n)
        clock.now += 0.3  # the tick is slow
        assert ticks.done() == 0
    clock.offset -= 3600
    assert ticks.overruns == 0 and ticks.delay_s() == pytest.approx(0.7), "a step of the wall clock moves no tick"


def test_ticks_whose_time_has_passed_are_counted_and_skipped_not_queued():
    clock = WallClock(wall=1000.0)
    ticks = schedule(clock, 1)
    clock.now += 3.5  # the tick at 0 ends at 3.5: those at 1, 2 and 3 are lost
    assert ticks.done() == 3
    assert ticks.overruns == 3
    assert ticks.delay_s() == pytest.approx(0.5)
    clock.now += 0.6
    assert ticks.done() == 0
    assert ticks.delay_s() == pytest.approx(0.9)


# -- another period --


def ticks_until(ticks, clock, end):
    """Wall times of the ticks that are taken until then."""
    taken = []
    while clock.wall() + ticks.delay_s() <= end:
        clock.now += ticks.delay_s()
        taken.append(round(clock.wall(), 3))
        clock.now += 0.01
        ticks.done()
    clock.now += end - clock.wall()
    return taken


@pytest.mark.parametrize(
    ("before", "after", "at", "expected"),
    [
        (5, 2, 1011.5, [1012, 1014, 1016, 1018]),
        (2, 5, 1011.5, [1015]),
        (5, 60, 1011.5, []),
        (5, 0.5, 1018.2, [1018.5, 1019, 1019.5]),
        (5, 2.5, 1010.0101, [1012.5, 1015, 1017.5]),  # just after a tick: it does not come twice
    ],
)
def test_another_period_goes_on_at_its_own_multiples(before, after, at, expected):
    clock = WallClock(wall=1000.0)
    ticks = schedule(clock, before)
    assert len(ticks_until(ticks, clock, at)) == (at - 1000) // before + 1
    ticks.change(after)
    assert ticks_until(ticks, clock, 1019.99) == expected
    assert ticks.overruns == 0 and ticks.period_s == after


@pytest.mark.parametrize("after", [1, 4, 7, 3600])
def test_a_tick_that_is_due_when_the_period_changes_is_taken_at_once(after):
    clock = WallClock(wall=1000.0)
    ticks = schedule(clock, 5)
    ticks_until(ticks, clock, 1009)
    clock.now += 1.25  # something was slow
    assert ticks.delay_s() == 0
    ticks.change(after)
    assert ticks.delay_s() == 0
    assert ticks.done() == 0
    assert clock.wall() + ticks.delay_s() == pytest.approx((1010.25 // after + 1) * after)


def test_a_clock_that_was_set_does_not_bring_a_tick_twice():
    clock = WallClock(wall=1000.0)
    ticks = schedule(clock, 5)
    ticks_until(ticks, clock, 1005.02)
    clock.offset -= 0.03  # 1004.99 again, of which the tick has been taken
    ticks.change(1)
    assert clock.wall() + ticks.delay_s() == pytest.approx(1006)


def test_a_tick_now_and_then():
    clock = WallClock()
    every = Every(10, clock.monotonic)
    due = []
    for n in range(40):
        if every.is_due():
            due.append(n)
        if n == 22:
            every.change(3)
        clock.now += 1
    # a second early, as a tick may come
    assert due == [0, 9, 19, 25, 28, 31, 34, 37]
    every.change(100)
    clock.now += 3
    assert every.is_due()  # what was to come goes before
    clock.now += 99
    assert every.is_due() and not every.is_due()
