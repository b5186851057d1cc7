"""Tables of temperatures: the columns of Colmet 0.6, and a row for each sensor."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, gauge, label
from colmet.common.tables.agent_counters import PART_FAILURES

THERMAL = "/sys/class/thermal"
HWMON = "/sys/class/hwmon"
COLUMNS = 6
SCHEMA = Schema(
    "temperaturestats_default",
    "node",
    [
        gauge(
            *(f"counter_{n}", "celsius", "Temperature in whole degrees; mapping_default names the sensor."),
            f"{THERMAL}/thermal_zone*/temp, or where there is none {HWMON}/hwmon*/temp*_input",
        )
        for n in range(1, COLUMNS + 1)
    ],
)


def _celsius(name: str, text: str, files: str) -> Field:
    return gauge(name, "celsius", text, files, "f8")


_BOTH = f"{THERMAL} and {HWMON}"
SENSOR_SCHEMA = Schema(
    "temperatures_default",
    "node",
    [
        label("sensor", 64, "Sensor of the row: x86_pkg_temp_0, coretemp.0/Package id 0.", _BOTH),
        label("source", 8, "thermal or hwmon.", _BOTH),
        _celsius("temperature", "Temperature.", f"{THERMAL}/thermal_zone*/temp, {HWMON}/hwmon*/temp*_input"),
        _celsius(
            "critical",
            "Limit for throttling or shutdown.",
            f"{THERMAL}/thermal_zone*/trip_point_*_temp of type critical, {HWMON}/hwmon*/temp*_crit",
        ),
    ],
)

AGENT_COUNTERS = (PART_FAILURES,)
