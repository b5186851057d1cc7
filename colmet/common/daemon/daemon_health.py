"""Self-reports of both daemons: identity, counters that grew in the last hour, age of the backlog, metrics as text."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Union

from colmet import __version__
from colmet.common.schema import UNITS

RECENT_S = 3600.0
_STEP_S = 60.0
NOTE_S = 10.0


class RecentGrowth:
    """The growth of counters within the last hour, from their values at the start; 0 for missing ones."""

    def __init__(
        self, start: Mapping[str, int] = MappingProxyType({}), monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._notes = deque([(monotonic(), dict(start))])
        self._latest = dict(start)

    def note(self, totals: Mapping[str, int]) -> None:
        """Note the totals since the start."""
        now = self._monotonic()
        if now - self._notes[-1][0] >= _STEP_S:
            self._notes.append((now, dict(totals)))
            while self._notes[0][0] < now - RECENT_S:
                self._notes.popleft()
        self._latest = dict(totals)

    def growth(self) -> dict[str, int]:
        """Return the growth of each counter."""
        before = self._notes[0][1]
        return {name: max(0, count - before.get(name, 0)) for name, count in self._latest.items()}


class Backlog:
    """The age of the oldest waiting item, from notes of the number received by a time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._notes: deque[tuple[float, int]] = deque(maxlen=int(RECENT_S / NOTE_S))

    def note(self, came: int) -> None:
        """Note the number received since the start."""
        now = self._monotonic()
        if not self._notes or now - self._notes[-1][0] >= NOTE_S:
            self._notes.append((now, came))

    def behind_s(self, came: int, waiting: int) -> float:
        """Return the age in seconds, to 10 s and at most that of the oldest note; 0 if nothing waits."""
        done = came - waiting
        then = next((when for when, count in list(self._notes) if count > done), None)
        return 0.0 if then is None else round(self._monotonic() - then, 1)


class DaemonIdentity:
    """The daemon, and the time of its start."""

    def __init__(self, daemon: str) -> None:
        self.daemon = daemon
        self._start = time.monotonic()
        self._started = time.time()
        self._host = socket.gethostname()

    @property
    def uptime_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start

    def values(self) -> dict[str, Any]:
        """Return the first keys of a status."""
        return {
            "daemon": self.daemon,
            "version": __version__,
            "host": self._host,
            "pid": os.getpid(),
            "uptime_s": round(self.uptime_s, 1),
        }

    def families(self) -> Iterator[Family]:
        """Yield the metrics of the daemon and its start."""
        name = f"colmet_{self.daemon}"
        about = labels({"version": __version__, "host": self._host})
        yield Family(f"{name}_info", "gauge", "Always 1; the labels name the daemon.", [(about, 1)])
        yield single(f"{name}_start_time_seconds", "gauge", "When it was started, since the epoch.", self._started)
        yield single(f"{name}_cpu_seconds_total", "counter", "CPU time of the process.", time.process_time())


def single(name: str, kind: str, help_text: str, value: Number | None) -> Family:
    """Return a family of one sample without labels; without a sample for None."""
    return Family(name, kind, help_text, [] if value is None else [("", value)])


# Gauges among the counters named by parts: they rise and fall.
GAUGES = frozenset(
    {
        *("waiting", "waiting_bytes", "bytes", "segments", "oldest", "records"),
        *("held", "memory_bytes", "disk_bytes", "disk_segments"),
        *("callers", "connections", "keys", "broken_keys", "running"),
        *("outstanding", "collectors", "collectors_there", "collectors_mute"),
        *("loaded", "failed"),  # plug-ins
    }
)


def families_of(prefix: str, part: str, counters: Mapping[str, Number]) -> Iterator[Family]:
    """Yield a family for each of a part's counters."""
    for key, value in counters.items():
        kind = "gauge" if key in GAUGES or key.endswith("_s") else "counter"
        end = f"{key[:-2]}_seconds" if key.endswith("_s") else key.removeprefix(f"{part}_")
        name = named(prefix, part, end, kind=kind)
        yield single(name, kind, f"{part}: {key.replace('_', ' ')}.", value)


log = logging.getLogger(__name__)

MIN_STEP_NS = 1_000_000_000  # smaller ones change no second of a row by more than one


def _uptime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Comparison of the wall clock with the time since the machine's boot, which includes suspension.

    Args:
        wall_ns: the wall clock.
        uptime_ns: the time since boot.

    Attributes:
        steps: number of times the clock was set.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, uptime_ns: Callable[[], int] = _uptime_ns) -> None:
        self.steps = 0
        self._wall_ns = wall_ns
        self._uptime_ns = uptime_ns
        self._booted_ns = wall_ns() - uptime_ns()

    def look(self) -> None:
        """Log a step of the clock since the last look."""
        uptime_ns = self._uptime_ns()
        booted_ns = self._wall_ns() - uptime_ns
        if self._uptime_ns() - uptime_ns >= MIN_STEP_NS // 2:
            return  # interrupted between the two readings
        step_ns, self._booted_ns = booted_ns - self._booted_ns, booted_ns
        if abs(step_ns) >= MIN_STEP_NS:
            self.steps += 1
            log.warning("clock was set by seconds=%+.1f: times of rows change by that", step_ns / 1e9)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PIECE = 100  # lines of a piece; other threads can work between two pieces

Number = Union[int, float]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # of a label's value
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Family(NamedTuple):
    """All samples of one name, made by `named`, of a kind (counter, gauge, untyped): `labels`, and a value each."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[str, Number]]


def named(*parts: str, kind: str = "gauge") -> str:
    """Return a metric's name: the parts joined; those of counters end in _total."""
    name = _NOT_A_NAME.sub("_", "_".join(parts))
    return f"{name}_total" if kind == "counter" and not name.endswith("_total") else name


def in_base_unit(name: str, unit: str, kind: str) -> tuple[str, Number]:
    """Return the suffix of a metric's name, with its base unit, and the divisor of its values."""
    return named(name + UNITS[unit].prometheus, kind=kind), UNITS[unit].divisor


def labels(pairs: Mapping[str, str]) -> str:
    """Return labels in braces; "" for none."""
    if not pairs:
        return ""
    return "{" + ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs.items()]) + "}"


def render(families: Iterable[Family]) -> Iterator[str]:
    """Yield the text, in pieces of a number of lines; skip families without samples."""
    for family in families:
        help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines = [f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.kind}\n"]
        for sample_labels, value in family.samples:
            lines.append(f"{family.name}{sample_labels} {value}\n")
            if len(lines) > PIECE:
                yield "".join(lines)
                lines = []
        if len(lines) != 1 or not lines[0].startswith("#"):
            yield "".join(lines)
