"""Temperatures of thermal zones, and of all sensors of the kernel's hwmon drivers."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colmet.common.config.cli import Options
from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host
from colmet.common.schema import Sample, Value
from colmet.common.tables.power import HWMON, THERMAL
from colmet.common.tables.power import SENSORS as SENSOR_SCHEMA
from colmet.common.tables.power import TEMPERATURE_COLUMNS as COLUMNS
from colmet.common.tables.power import TEMPERATURE_COUNTERS as AGENT_COUNTERS
from colmet.common.tables.power import TEMPERATURES as SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.counter_names import CounterName
from colmet.node.jobs.job import NODE_JOB

log = logging.getLogger(__name__)

# Drivers of processors: if columns are filled from hwmon, theirs come first.
PROCESSORS = frozenset({"coretemp", "k10temp", "k8temp", "zenpower"})
# Beyond these (mC) it is no temperature: registers of missing sensors read -128, 255, -273 and the like.
LOWEST, HIGHEST = -100_000, 200_000

_ZONE = re.compile(r"thermal_zone(\d{1,5})", re.ASCII)
_TRIP = re.compile(r"trip_point_(\d{1,3})_type", re.ASCII)
_CHIP = re.compile(r"hwmon(\d{1,5})", re.ASCII)
_INPUT = re.compile(r"temp(\d{1,5})_input", re.ASCII)
_MILLI = re.compile(rb"-?\d{1,10}\n?")


def parse_milli(data: bytes) -> int:
    """Return a temperature in thousandths of a degree Celsius; ValueError for an impossible one, or no number."""
    if not _MILLI.fullmatch(data):
        raise ValueError(f"not a number: {data[:20]!r}")
    milli = int(data)
    if not LOWEST <= milli <= HIGHEST:
        raise ValueError(f"{milli / 1000:g} C is no temperature")
    return milli


@dataclass(eq=False)
class _Sensor:
    """A sensor, whatever its current path."""

    name: str  # unique among sensors
    source: str  # thermal or hwmon
    path: str  # of the file with its temperature; "" while it is gone
    critical: float | None  # threshold in degrees Celsius

    def row(self, milli: int | None) -> dict[str, Value]:
        degrees = None if milli is None else milli / 1000
        labels = {"sensor": self.name.encode(), "source": self.source.encode()}
        return {**labels, "temperature": degrees, "critical": self.critical}


class TemperatureBackend(InputBackend):
    """A row of the node with 0.6's columns, and a row for each sensor."""

    name = "temperature"
    schema = SCHEMA
    others = (SENSOR_SCHEMA,)
    agent_counters = AGENT_COUNTERS
    blocking = True  # ACPI calls the firmware, others use a slow bus

    def __init__(self, host: Host) -> None:
        self._host = host
        self._listing: list[list[str]] = []
        self._devices: list[str] = []  # targets of its links: a number may become another device's
        self._known: dict[str, _Sensor] = {}  # present, or with a column, in the order of the columns
        self._columns: list[_Sensor] = []
        self._failures = 0
        self._once = OnceLog(log)

    @classmethod
    def add_options(cls, parser: Options) -> None:
        parser.add_argument(
            "--enable-temperature", action="store_true", help="measure temperatures: thermal zones and hwmon sensors"
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> TemperatureBackend | None:
        return cls(host) if options.enable_temperature else None

    def open(self) -> None:
        self._devices = self._targets(listing := self._list())
        self._listing = listing
        found = {sensor.name: sensor for sensor in (*self._zones(), *self._chips())}
        if not found:
            raise BackendUnavailable(
                f"no thermal zone in {THERMAL} and no temperature in {HWMON}; `modprobe coretemp` (Intel) or `modprobe "
                "k10temp` (AMD) brings those of processors; virtual machines have none"
            )
        for name in self._known.keys() - found.keys():
            if self._known[name] in self._columns:
                self._known[name].path = ""
            else:  # a device plugged in repeatedly may have another name each time
                del self._known[name]
        self._known.update(found)
        # zones come first if any exist; but a column must not change its meaning when they appear later
        first = next(iter(self._known.values()))
        ours = [sensor for sensor in self._known.values() if sensor.source == first.source]
        self._columns = ours[:COLUMNS]
        if len(ours) > COLUMNS:
            text = "%d sensors, and %s has columns for %d: all are in %s"
            self._once.info(text, len(ours), SCHEMA.name, COLUMNS, SENSOR_SCHEMA.name)

    def _list(self) -> list[list[str]]:
        return [self._host.sorted_names(path) for path in (THERMAL, HWMON)]

    def _targets(self, listing: list[list[str]]) -> list[str]:
        found = []
        for path, names in zip((THERMAL, HWMON), listing):
            for name in names:
                try:
                    found.append(self._host.link(f"{path}/{name}"))
                except OSError:  # no link, or gone meanwhile
                    found.append(name)
        return found

    def _zones(self) -> Iterator[_Sensor]:
        """Yield the thermal zones, by their numbers."""
        for number, name in _numbered(_ZONE, self._listing[0]):
            path = f"{THERMAL}/{name}"
            kind = self._text(f"{path}/type")
            if kind:
                yield _Sensor(f"{kind}_{number}", "thermal", f"{path}/temp", self._critical_of_zone(path))

    def _critical_of_zone(self, path: str) -> float | None:
        for number, name in _numbered(_TRIP, self._host.sorted_names(path)):
            if self._text(f"{path}/{name}") == "critical":
                return self._threshold(f"{path}/trip_point_{number}_temp")
        return None

    def _chips(self) -> Iterator[_Sensor]:
        """Yield the sensors of hwmon: processors first, of each chip its first sensor before the second of any.

        The first is that of the whole package (Tctl, Package id 0), so all sockets have theirs among the first.
        """
        found = []
        for _, name in _numbered(_CHIP, self._listing[1]):
            path = f"{HWMON}/{name}"
            chip = self._text(f"{path}/name")
            real = self._host.resolve(path)
            if not chip or "/thermal_zone" in real:  # a duplicate of a thermal zone
                continue
            prefix = _chip_name(chip, real)
            for number, file in _numbered(_INPUT, self._host.sorted_names(path)):
                found.append(((chip not in PROCESSORS, number, chip, real), number, path, prefix, file))
        taken = set()
        for _, number, path, prefix, file in sorted(found):
            name = f"{prefix}/{self._text(f'{path}/temp{number}_label') or f'temp{number}'}"
            if name in taken:
                name = f"{name} ({path.rpartition('/')[2]} temp{number})"
            taken.add(name)
            yield _Sensor(name, "hwmon", f"{path}/{file}", self._threshold(f"{path}/temp{number}_crit"))

    def _text(self, path: str) -> str:
        """Return a line of firmware or of a driver, harmless in files and on terminals; "" if unreadable."""
        try:
            line = self._host.read(path)[:64].decode("ascii", "replace").strip()
        except OSError:
            return ""
        return "".join([c if c.isascii() and c.isprintable() and c != "," else "?" for c in line])

    def _threshold(self, path: str) -> float | None:
        try:
            milli = parse_milli(self._host.read(path))
        except (OSError, ValueError):
            return None
        return milli / 1000 if milli > 0 else None

    def sample(self, jobs: Sequence[Any]) -> Iterable[Sample]:
        if (listing := self._list()) != self._listing or self._targets(listing) != self._devices:
            self.open()
        milli = {sensor: self._read(sensor) for sensor in self._known.values()}
        degrees = [milli[sensor] for sensor in self._columns]
        columns: dict[str, Value] = {
            f"counter_{n}": None if value is None else (value + 500) // 1000 for n, value in enumerate(degrees, 1)
        }
        return [
            Sample(NODE_JOB, columns),
            *[Sample(NODE_JOB, sensor.row(value), SENSOR_SCHEMA) for sensor, value in milli.items()],
        ]

    def _read(self, sensor: _Sensor) -> int | None:
        try:
            return parse_milli(self._host.read(sensor.path))
        except (OSError, ValueError) as err:  # a sleeping device returns ENODATA, EAGAIN or EIO
            self._failures += 1
            if powers_of_ten(self._failures):
                reason = getattr(err, "strerror", None) or err
                log.warning("no temperature sensor=%s failures=%d: %s", sensor.name, self._failures, reason)
            return None

    def counter_names(self) -> Sequence[CounterName]:
        return [CounterName(f"counter_{n + 1}", one.name, "celsius") for n, one in enumerate(self._columns)]

    def mapping_file(self) -> tuple[str, Sequence[str]] | None:
        names = [one.name for one in self._columns] + ["no counter "] * (COLUMNS - len(self._columns))
        return "temperature", [f"counter_{n}, {name}" for n, name in enumerate(names, 1)]

    def counters(self) -> Mapping[str, int]:
        return {"part_failures": self._failures}


def _chip_name(chip: str, path: str) -> str:
    """Return the name of a chip: by its device, since the numbers in `hwmon3` may change at each boot.

    `path` is that of its directory, without links: ``/sys/devices/platform/coretemp.0/hwmon/hwmon3``.
    """
    device = path.rpartition("/")[0].removesuffix("/hwmon").rpartition("/")[2]
    if device == "virtual" or device.startswith(chip):
        return chip if device == "virtual" else device
    return f"{chip}-{device.removeprefix('0000:')}"  # the only PCI domain of most machines


def _numbered(form: re.Pattern[str], names: Iterable[str]) -> list[tuple[int, str]]:
    """Return names of one form with their numbers, sorted by these."""
    return sorted((int(match[1]), name) for name in names if (match := form.fullmatch(name)))
