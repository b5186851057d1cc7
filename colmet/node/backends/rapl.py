"""Energy of processors and memory, by their RAPL counters: a row of the node, and one for each zone."""

from __future__ import annotations

import argparse
import ctypes
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from colmet.common.config.cli import Options
from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import BackendUnavailable
from colmet.common.host.capabilities import suggest
from colmet.common.host.host import Host
from colmet.common.schema import Sample, Value
from colmet.common.tables.power import PACKAGES, POWERCAP, ZONES
from colmet.common.tables.power import RAPL as SCHEMA
from colmet.common.tables.power import RAPL_COUNTERS as AGENT_COUNTERS
from colmet.common.tables.power import RAPL_ZONES as ZONE_SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.counter_names import CounterName
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.kernel import clib

log = logging.getLogger(__name__)

ABI = 1  # RAPL_ABI in rapl.h
# Terms of mapping files: energy, range, and a column of a zone that a package lacks.
ENERGY = "energy_microjoule"
MOST = "max_energy_range_microjoule"
LACKING = "counter_not_supported_by_hardware"
# More than any zone draws: a counter above that has restarted, or is wrong.
MAX_W = {"psys": 20_000.0}
MAX_W_OF_OTHERS = 2_000.0
LARGE_PACKAGE_W = 500.0
# The counters move about once in a millisecond.
MIN_INTERVAL_S = 0.05


class _Described(ctypes.Structure):
    """``struct rapl_zone`` of rapl.h."""

    _fields_ = (
        ("id", ctypes.c_char * 32),
        ("name", ctypes.c_char * 64),
        ("parent", ctypes.c_int32),
        ("package", ctypes.c_int32),
        ("die", ctypes.c_int32),
        ("max_energy_range_uj", ctypes.c_uint64),
    )


class _Library:
    """The functions of lib_rapl, for one directory; OSError if that cannot be read."""

    def __init__(self, root: str) -> None:
        self._handle = handle = ctypes.c_void_p()
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._functions = functions = clib.load("lib_rapl", ABI, "LIB_RAPL_PATH")
        functions.rapl_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(pointer))
        functions.rapl_count.argtypes = functions.rapl_left_out.argtypes = functions.rapl_close.argtypes = (pointer,)
        functions.rapl_count.restype = functions.rapl_left_out.restype = size
        functions.rapl_describe.argtypes = (pointer, size, ctypes.POINTER(_Described))
        functions.rapl_read.argtypes = (pointer, pointer, pointer, size)
        functions.rapl_close.restype = None
        status = functions.rapl_open(os.fsencode(root), ctypes.byref(handle))
        if status < 0:
            raise OSError(-status, os.strerror(-status), root)
        self.count: int = functions.rapl_count(self._handle)
        self.left_out: int = functions.rapl_left_out(self._handle)
        self._energies = (ctypes.c_uint64 * self.count)()
        self._errors = (ctypes.c_int32 * self.count)()

    def zones(self) -> list[_Described]:
        """Return all zones, sorted by the numbers of their ids."""
        zones = [_Described() for _ in range(self.count)]
        for n, zone in enumerate(zones):
            self._functions.rapl_describe(self._handle, n, ctypes.byref(zone))
        return zones

    def read(self) -> list[tuple[int, int]]:
        """Return for each zone its counter in uJ, and 0 or the errno of the failed read."""
        self._functions.rapl_read(self._handle, self._energies, self._errors, self.count)
        return [(energy, -error) for energy, error in zip(self._energies, self._errors)]

    def close(self) -> None:
        """Free the library's resources; can be called twice."""
        self._functions.rapl_close(self._handle)
        self._handle = ctypes.c_void_p()


@dataclass(eq=False)
class _Zone:
    """A zone, and the values of its counter."""

    label: str  # unique among zones
    name: str  # package-0, core, ...
    package: str  # its package's name, "" without one
    place: tuple[int, int] | None  # number and die of its package
    range_uj: int = 0  # the counter wraps to 0 beyond it; 0 if unknown
    energy_uj: int = 0  # used since the agent's start
    used_uj: int | None = None  # between the last two samples that read it; None without two
    watts: float | None = None  # mean power since the reading before
    _last_uj: int | None = None
    _read_at: float = 0.0
    _was_sampled: bool = False

    def forget(self) -> None:
        """Forget the last value of an unread counter: the next one cannot be compared with it."""
        self._last_uj = None
        self._was_sampled = False

    def take(self, counter_uj: int, now: float, is_sample: bool = True) -> bool:
        """Process a new value of the counter, read at `now` of the monotonic clock.

        `is_sample`: it was read for a row, and not as a first value to start from. Return False if it decreased, or
        grew by more than any zone can use: it has restarted.
        """
        last_uj, seconds, was_sampled = self._last_uj, now - self._read_at, self._was_sampled
        self._last_uj, self._read_at, self._was_sampled = counter_uj, now, is_sample
        self.used_uj = self.watts = None
        if last_uj is None:
            return True
        used_uj = counter_uj - last_uj
        if used_uj < 0 and self.range_uj:
            used_uj += self.range_uj
        # even in the shortest interval the counter moves by a whole step
        if not 0 <= used_uj <= MAX_W.get(self.name, MAX_W_OF_OTHERS) * 1e6 * max(seconds, MIN_INTERVAL_S):
            return False
        self.energy_uj += used_uj
        if was_sampled:
            self.used_uj = used_uj
        if seconds >= MIN_INTERVAL_S:
            self.watts = used_uj / 1e6 / seconds
        return True


class RaplBackend(InputBackend):
    """A row of the node with 0.6's columns, and a row for each zone; a sample every `period_s`."""

    name = "rapl"
    schema = SCHEMA
    others = (ZONE_SCHEMA,)
    agent_counters = AGENT_COUNTERS
    of_interval = True

    def __init__(self, host: Host, period_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._period_s = period_s
        self._monotonic = monotonic
        self._library: _Library | None = None
        self._listing: list[str] = []
        self._known: dict[str, _Zone] = {}  # all ever seen, by label
        self._present: list[_Zone] = []  # in the order of the library
        self._columns: list[tuple[int, str, str, _Zone | None]] = []  # number, package, kind, zone
        self._failures = self._resets = 0
        self._once = OnceLog(log)

    @classmethod
    def add_options(cls, parser: Options) -> None:
        text = "measure the energy of processors and memory (RAPL)"
        parser.add_argument("--enable-RAPL", "--enable-rapl", action="store_true", help=text)

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> RaplBackend | None:
        return cls(host, options.sample_period) if options.enable_RAPL else None

    def open(self) -> None:
        for zone in self._known.values():
            zone.forget()
        self._find()
        assert self._library is not None
        now, errors = self._monotonic(), []
        for zone, (counter_uj, error) in zip(self._present, self._library.read()):
            if error:
                errors.append(error)
            else:
                zone.take(counter_uj, now, is_sample=False)
        if len(errors) == len(self._present):
            raise BackendUnavailable(
                f"{POWERCAP}: the energy counters are root's to read; {suggest('CAP_DAC_READ_SEARCH')}"
                if errno.EACCES in errors
                else f"{POWERCAP}: no counter can be read: {os.strerror(errors[0])}; does the kernel's log say why?"
            )

    def _find(self) -> None:
        """List the zones as of now; BackendUnavailable without any."""
        self.close()
        try:
            self._listing = self._host.sorted_names(POWERCAP)
            self._library = _Library(self._host.path(POWERCAP))
        except OSError as err:
            raise BackendUnavailable(f"{_NO_ZONES} ({err.strerror})") from err
        if not self._library.count:
            raise BackendUnavailable(_NO_ZONES)
        if self._library.left_out:
            self._once.warning("%s: %d zones are skipped, their names cannot be read", POWERCAP, self._library.left_out)
        self._present = []
        described = self._library.zones()
        for zone in described:
            package = described[zone.parent].name.decode() if zone.parent >= 0 else ""
            known = self._know(zone, package)
            known.range_uj = zone.max_energy_range_uj
            self._present.append(known)
        for zone_gone in self._known.values():
            if zone_gone not in self._present:
                zone_gone.forget()
        self._lay_out()

    def _know(self, zone: _Described, parent: str) -> _Zone:
        """Return the known zone of this name, or a new one: the id of a returning zone may differ."""
        name = zone.name.decode()
        label = f"{parent}/{name}" if parent else name
        if any(present.label == label for present in self._present):
            label = f"{label} ({zone.id.decode()})"
        if label not in self._known:
            place = (zone.package, zone.die) if zone.package >= 0 else None
            package = (parent or name) if place is not None else ""
            self._known[label] = _Zone(label, name, package, place)
        return self._known[label]

    def _lay_out(self) -> None:
        """Assign columns to zones. Zones that are gone keep theirs."""
        packages = {zone.place: zone.package for zone in self._known.values() if zone.place is not None}
        ordered = [packages[place] for place in sorted(packages)]
        self._columns = []
        for n, package in enumerate(ordered[:PACKAGES]):
            for part, kind in enumerate(ZONES):
                label = package if kind == "package" else f"{package}/{kind}"
                self._columns.append((2 * (n * len(ZONES) + part) + 1, package, kind, self._known.get(label)))
        if len(ordered) > PACKAGES:
            self._once.warning(
                "%d packages, and %s has columns for %d: %s are in %s alone",
                len(ordered),
                SCHEMA.name,
                PACKAGES,
                ", ".join(ordered[PACKAGES:]),
                ZONE_SCHEMA.name,
            )
        ranges = [zone.range_uj for zone in self._present if zone.place is not None and zone.range_uj]
        wraps_after_s = min(ranges, default=0) / 1e6 / LARGE_PACKAGE_W
        if ranges and self._period_s > wraps_after_s:
            self._once.warning(
                "--sample-period %g s is too long for these counters: at %g W one wraps after %.0f s, and two wraps "
                "between two samples lose energy; shorten it",
                self._period_s,
                LARGE_PACKAGE_W,
                wraps_after_s,
            )

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        if self._host.sorted_names(POWERCAP) != self._listing:
            self._find()
        assert self._library is not None
        read = dict(zip(self._present, self._library.read()))
        now = self._monotonic()
        fresh = set()
        for zone in self._known.values():
            counter_uj, error = read.get(zone, (0, errno.ENODEV))
            if not error and zone.range_uj and counter_uj > zone.range_uj:
                error = errno.EPROTO
            if error:
                self._failures += 1
                if powers_of_ten(self._failures):
                    log.warning(
                        "zone cannot be read zone=%s failures=%d: %s", zone.label, self._failures, os.strerror(error)
                    )
            elif zone.take(counter_uj, now):
                fresh.add(zone)
            else:
                self._resets += 1
                if powers_of_ten(self._resets):
                    log.warning("counter of zone restarted zone=%s resets=%d", zone.label, self._resets)
        return [
            Sample(NODE_JOB, self._row(fresh, read)),
            *[Sample(NODE_JOB, _zone_row(zone, zone in fresh), ZONE_SCHEMA) for zone in self._known.values()],
        ]

    def _row(self, fresh: set[_Zone], present: Mapping[_Zone, object]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for number, _, _, zone in self._columns:
            if zone is not None and zone in present:
                values[f"counter_{number}"] = zone.used_uj if zone in fresh else None
                values[f"counter_{number + 1}"] = zone.range_uj or None
        return values

    def counter_names(self) -> Sequence[CounterName]:
        return [
            CounterName(f"counter_{number + n}", kind, "ujoules", zone.label)
            for number, _, _, zone in self._columns
            if zone is not None
            for n, kind in enumerate((ENERGY, MOST))
        ]

    def mapping_file(self) -> tuple[str, Sequence[str]] | None:
        """Return a line for each column of 0.6's table: of the present packages, including zones that they lack."""
        lines = []
        for number, package, kind, zone in self._columns:
            for n, content in enumerate((ENERGY, MOST) if zone is not None else (LACKING, LACKING)):
                lines.append(f"counter_{number + n},{content},{package},zone_{kind}")
        numbers = range(len(lines) + 1, 2 * PACKAGES * len(ZONES) + 1)
        return "RAPL", [*lines, *[f"counter_{number},no_counter,," for number in numbers]]

    def counters(self) -> Mapping[str, int]:
        return {"part_failures": self._failures, "zone_resets": self._resets}

    def close(self) -> None:
        if self._library is not None:
            self._library.close()
            self._library = None


_NO_ZONES = (
    f"no RAPL zone in {POWERCAP}; `modprobe intel_rapl_msr` (intel_rapl before Linux 5.3) brings those of Intel's and "
    "AMD's processors, of the latest Xeons `modprobe intel_rapl_tpmi`; virtual machines have none"
)


def _zone_row(zone: _Zone, is_fresh: bool) -> dict[str, Value]:
    return {
        "zone": zone.label.encode(),
        "name": zone.name.encode(),
        "package": zone.package.encode(),
        "energy": zone.energy_uj if is_fresh else None,
        "power": zone.watts if is_fresh else None,
        "max_energy_range": zone.range_uj or None,
    }
