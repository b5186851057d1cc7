"""Units: one declaration for charts, terminals, answers, Prometheus and Grafana."""

from __future__ import annotations

import pytest

from colmet.common.units import UNITS


@pytest.mark.parametrize(
    ("name", "divisor"), [("nsec", 10**9), ("usec", 10**6), ("sec", 1), ("kbytes", 1 / 1024), ("bytes", 1)]
)
def test_a_divisor_for_prometheus_is_exact(name, divisor):
    assert UNITS[name].divisor == divisor


def test_units_without_a_base_unit_in_prometheus_stay_as_stored():
    assert {name for name, unit in UNITS.items() if unit.prometheus} == {"nsec", "usec", "sec", "kbytes"}
    assert UNITS["ujoules"].divisor == 1


def test_answers_have_shares_of_one_and_charts_per_cent():
    assert (UNITS["percent"].scale, UNITS["percent"].factor, UNITS["percent"].symbol) == (0.01, 1.0, "%")


def test_the_growth_of_energy_is_power_and_that_of_cpu_time_is_cores():
    assert UNITS["ujoules"].per_second().symbol == "W"
    assert UNITS["nsec"].per_second(cpu_time=True).symbol == "cores"
    assert UNITS["nsec"].per_second().symbol == "s/s"
    assert UNITS["kbytes"].per_second().scaled(3 << 20) == (1 << 20, "MiB/s"), "the same family as sizes"
