"""Tables of energy: the counters of Colmet 0.6, and a row for each RAPL zone."""

from __future__ import annotations

from collections.abc import Iterable

from colmet.common.schema import Field, Schema, label
from colmet.common.tables.agent_counters import PART_FAILURES, counter

POWERCAP = "/sys/class/powercap"
# The columns of Colmet 0.6: of each package these zones, of each zone its energy and its range.
PACKAGES = 4
ZONES = ("package", "core", "dram")


def _columns() -> Iterable[Field]:
    source = f"Source: {POWERCAP}/intel-rapl:*"
    for package in range(PACKAGES):
        for part, zone in enumerate(ZONES):
            number = 2 * (package * len(ZONES) + part) + 1
            of = f"zone {zone} of package {package}"
            yield Field(f"counter_{number}", "count", "gauge", f"uJ since the last sample, {of}. {source} energy_uj.")
            yield Field(
                f"counter_{number + 1}",
                "count",
                "gauge",
                f"Value in uJ at which the counter of {of} wraps. {source} max_energy_range_uj.",
            )


_NAMED = f"{POWERCAP}/intel-rapl:*/name"
SCHEMA = Schema("RAPLstats_default", "node", _columns())
ZONE_SCHEMA = Schema(
    "raplzones_default",
    "node",
    [
        label("zone", 64, "Zone of the row: package-0, package-0/dram, psys.", _NAMED),
        label("name", 32, "Its name without its package's: package-0, core, uncore, dram, psys.", _NAMED),
        label("package", 32, "Its package, package-0; empty for psys.", _NAMED),
        Field(
            "energy",
            "ujoules",
            "counter",
            f"Energy used since the agent's start, over all wraps. Source: {POWERCAP}/intel-rapl:*/energy_uj.",
        ),
        Field(
            "power",
            "watts",
            "gauge",
            f"Mean power since the zone was last read. Source: {POWERCAP}/intel-rapl:*/energy_uj over time.",
            dtype="f8",
        ),
        Field(
            "max_energy_range",
            "ujoules",
            "gauge",
            f"Value at which its counter wraps to 0. Source: {POWERCAP}/intel-rapl:*/max_energy_range_uj.",
        ),
    ],
)

AGENT_COUNTERS = (
    PART_FAILURES,
    counter("zone_resets", "Restarts of energy counters other than wraps.", "rapl backend"),
)
