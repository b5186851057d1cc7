"""A wall clock that is set is reported, each time and by how much; one that runs slow or fast is not."""

from __future__ import annotations

import logging

from colmet.common.daemon.daemon_health import ClockWatch

S = 10**9


class Clocks:
    wall, uptime = 1_800_000_000 * S, 100 * S

    def sleep(self, uptime_s, wall_s):
        self.uptime += int(uptime_s * S)
        self.wall += int(wall_s * S)


def test_each_step_is_logged_once_with_its_size(caplog):
    clocks = Clocks()
    watch = ClockWatch(lambda: clocks.wall, lambda: clocks.uptime)
    for passed, by_clock in ((5, 3605), (5, 5), (5, -7195), (5, 5)):
        clocks.sleep(passed, by_clock)
        watch.look()
    assert watch.steps == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "seconds=+3600.0:" in caplog.messages[0] and "seconds=-7200.0:" in caplog.messages[1]


def test_a_clock_that_is_steered_is_not_set(caplog):
    """NTP steers by at most 500 ppm."""
    clocks = Clocks()
    watch = ClockWatch(lambda: clocks.wall, lambda: clocks.uptime)
    for _ in range(20_000):
        clocks.sleep(60, 60.03)
        watch.look()
    assert watch.steps == 0 and not caplog.records


def test_an_interruption_between_the_readings_is_no_step(caplog):
    clocks = Clocks()

    def slow_wall():
        clocks.sleep(2, 2)
        return clocks.wall

    watch = ClockWatch(lambda: clocks.wall, lambda: clocks.uptime)
    watch._wall_ns = slow_wall
    watch.look()
    assert watch.steps == 0 and not caplog.records
