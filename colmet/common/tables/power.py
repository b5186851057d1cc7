"""Tables of energy, temperatures and power: the columns of Colmet 0.6, and a row for each RAPL zone and sensor."""

from __future__ import annotations

from collections.abc import Iterable

from colmet.common.schema import Field, Schema, counter, gauge, label
from colmet.common.tables import PART_FAILURES

POWERCAP = "/sys/class/powercap"
# The columns of Colmet 0.6: of each package these zones, of each zone its energy and its range.
PACKAGES = 4
ZONES = ("package", "core", "dram")
_FILES = f"{POWERCAP}/intel-rapl:*"


def _columns() -> Iterable[Field]:
    for package in range(PACKAGES):
        for part, zone in enumerate(ZONES):
            number = 2 * (package * len(ZONES) + part) + 1
            of = f"zone {zone} of package {package}"
            wraps = f"Value in uJ at which the counter of {of} wraps."
            yield gauge(f"counter_{number}", "count", f"uJ since the last sample, {of}.", f"{_FILES} energy_uj")
            yield gauge(f"counter_{number + 1}", "count", wraps, f"{_FILES} max_energy_range_uj")


RAPL = Schema("RAPLstats_default", "node", _columns())
RAPL_ZONES = Schema(
    "raplzones_default",
    "node",
    [
        label("zone", 64, "Zone of the row: package-0, package-0/dram, psys.", f"{_FILES}/name"),
        label("name", 32, "Its name without its package's: package-0, core, uncore, dram, psys.", f"{_FILES}/name"),
        label("package", 32, "Its package, package-0; empty for psys.", f"{_FILES}/name"),
        counter("energy", "ujoules", "Energy used since the agent's start, over all wraps.", f"{_FILES}/energy_uj"),
        gauge("power", "watts", "Mean power since the zone was last read.", f"{_FILES}/energy_uj over time", "f8"),
        gauge("max_energy_range", "ujoules", "Value at which its counter wraps to 0.", f"{_FILES}/max_energy_range_uj"),
    ],
)

RAPL_COUNTERS = (
    PART_FAILURES,
    counter("zone_resets", "count", "Restarts of energy counters other than wraps.", "the rapl backend"),
)


THERMAL = "/sys/class/thermal"
HWMON = "/sys/class/hwmon"
TEMPERATURE_COLUMNS = 6
TEMPERATURES = Schema(
    "temperaturestats_default",
    "node",
    [
        gauge(
            *(f"counter_{n}", "celsius", "Temperature in whole degrees; mapping_default names the sensor."),
            f"{THERMAL}/thermal_zone*/temp, or where there is none {HWMON}/hwmon*/temp*_input",
        )
        for n in range(1, TEMPERATURE_COLUMNS + 1)
    ],
)


def _celsius(name: str, text: str, files: str) -> Field:
    return gauge(name, "celsius", text, files, "f8")


_BOTH = f"{THERMAL} and {HWMON}"
SENSORS = Schema(
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

TEMPERATURE_COUNTERS = (PART_FAILURES,)


def _power(name: str, text: str) -> Field:
    source = "ipmi-oem dell, ipmi-dcmi, ipmitool dcmi, a sensor, or --ipmipower-cmd"
    return gauge(name, "watts", text, f"{source}")


IPMI_POWER = Schema(
    "ipmipowerstats_default",
    "node",
    [
        _power(
            "average_power_consumption",
            "Power averaged by the BMC: of a Dell over 5 s, by DCMI over a time of its own; of a sensor, its reading.",
        ),
        _power("current_power", "Power at the time of the measurement."),
        _power("minimum_power", "Minimum within the BMC's averaging time."),
        _power("maximum_power", "Maximum within the BMC's averaging time."),
        label("source", 8, "Source of the values: dell, dcmi, sensor or command.", "the backend"),
    ],
)
