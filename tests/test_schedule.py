from __future__ import annotations

import pytest

from colmet.node.schedule import Schedule


class Clock:
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
    clock = Clock(wall=1000.25)
    assert schedule(clock, 5).delay_s() == pytest.approx(4.75)


def test_ticks_stay_on_the_grid_however_late_each_is_taken():
    clock = Clock(wall=1000.0)
    ticks = schedule(clock, 1)
    for n in range(100):
        clock.now += ticks.delay_s()
        assert clock.wall() == pytest.approx(1000 + n)
        clock.now += 0.3  # the tick takes its time
        assert ticks.done() == 0
    assert ticks.overruns == 0


def test_ticks_whose_time_has_passed_are_counted_and_skipped_not_queued():
    clock = Clock(wall=1000.0)
    ticks = schedule(clock, 1)
    clock.now += 3.5  # the tick at 0 ends at 3.5: those at 1, 2 and 3 are lost
    assert ticks.done() == 3
    assert ticks.overruns == 3
    assert ticks.delay_s() == pytest.approx(0.5)
    clock.now += 0.6
    assert ticks.done() == 0
    assert ticks.delay_s() == pytest.approx(0.9)


def test_a_tick_that_ends_at_the_very_moment_of_the_next_does_not_skip_it():
    clock = Clock(wall=1000.0)
    ticks = schedule(clock, 1)
    clock.now += 1.0
    assert ticks.done() == 0
    assert ticks.delay_s() == pytest.approx(0, abs=1e-6)


def test_a_step_of_the_wall_clock_does_not_move_the_grid():
    clock = Clock(wall=1000.0)
    ticks = schedule(clock, 1)
    ticks.done()
    clock.offset -= 3600
    assert ticks.delay_s() == pytest.approx(1.0)


def test_a_short_period_keeps_its_grid_over_many_ticks():
    clock = Clock(wall=1000.0)
    ticks = schedule(clock, 0.1)
    for _ in range(10_000):
        clock.now += ticks.delay_s()
        ticks.done()
    assert ticks.overruns == 0
    assert clock.wall() == pytest.approx(1000 + 999.9)
