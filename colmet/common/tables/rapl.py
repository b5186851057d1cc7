"""Tables of energy: the counters of Colmet 0.6, and a row for each RAPL zone."""

from __future__ import annotations

from collections.abc import Iterable

from colmet.common.schema import Field, Schema, counter, gauge, label
from colmet.common.tables.agent_counters import PART_FAILURES

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


SCHEMA = Schema("RAPLstats_default", "node", _columns())
ZONE_SCHEMA = Schema(
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

AGENT_COUNTERS = (
    PART_FAILURES,
    counter("zone_resets", "count", "Restarts of energy counters other than wraps.", "the rapl backend"),
)
