"""Perf events: choices of them, their names and numbers for perf_event_open(2), and counts of cgroups.

Source: Linux include/uapi/linux/perf_event.h, and /sys/bus/event_source/devices for this machine's own events. The C
library lib_perf_hw counts.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from colmet.common.errors import ConfigError
from colmet.common.host.host import Host
from colmet.node.kernel import clib

MAX_TEXT = 4096  # characters of a list
_DECIMAL = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,9})?", re.ASCII)
_JOB = re.compile(r"[0-9]{1,18}", re.ASCII)
_SHORTEST_S, _LONGEST_S = 0.01, 86400.0


class EventChoice(NamedTuple):
    """One event to count."""

    name: str
    period_s: float | None = None  # least time from one value to the next; None for a value at every sample
    job_id: int | None = None  # the only job counted; None for all


def parse_choice(text: str) -> EventChoice:
    """Return the choice in a text, else ConfigError; -1 as its period or job means the default."""
    name, *rest = text.split(":")
    if not name or not name.isprintable() or len(rest) not in (0, 2):
        raise ConfigError(f"{text!r:.100}: give NAME, or NAME:PERIOD:JOB with -1 for every sample and for all jobs")
    if not rest:
        return EventChoice(name)
    period, job = rest
    period_s = float(period) if _DECIMAL.fullmatch(period) else 0.0
    if period != "-1" and not _SHORTEST_S <= period_s <= _LONGEST_S:
        raise ConfigError(f"{text!r:.100}: {period!r:.40} is no period of {_SHORTEST_S:g} to {_LONGEST_S:g} s, nor -1")
    number = int(job) if _JOB.fullmatch(job) else 0
    if job != "-1" and not number:
        raise ConfigError(f"{text!r:.100}: {job!r:.40} is not the number of a job, nor -1")
    return EventChoice(name, period_s or None, number or None)


def parse_choices(texts: Sequence[str], most: int) -> list[EventChoice]:
    """Return the choices in several texts; ConfigError if one is not a choice, or for none or more than `most`."""
    if not 0 < len(texts) <= most:
        raise ConfigError(f"{len(texts)} events; give {most} at most, and one at least")
    return [parse_choice(text) for text in texts]


def split_choices(text: str) -> list[str]:
    """Return the parts of a list with commas, but those between slashes; ConfigError if it is too long."""
    if len(text) > MAX_TEXT:
        raise ConfigError(f"a list of events of {len(text)} characters; give at most {MAX_TEXT}")
    between = text.split("/")  # the odd ones are between slashes
    marked = "/".join(part if n % 2 else part.replace(",", "\0") for n, part in enumerate(between))
    return [part.strip() for part in marked.split("\0")]


def choice_text(choice: EventChoice) -> str:
    """Return the shortest text of a choice."""
    if choice == EventChoice(choice.name):
        return choice.name
    period = -1 if choice.period_s is None else choice.period_s
    return f"{choice.name}:{period:.10g}:{-1 if choice.job_id is None else choice.job_id}"


DEVICES = "/sys/bus/event_source/devices"
_HARDWARE, _SOFTWARE, _CACHE, _RAW = 0, 1, 3, 4
_MAX_FILE = 4096  # bytes: names and numbers; the kernel allows a page, which may have 64 KiB
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_PMU = re.compile(r"([^/]+)/([^/]+)/([^/]*)", re.ASCII)
_FORMAT = re.compile(r"config([12]?):(\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)", re.ASCII)
_NUMBER = re.compile(r"0[xX][0-9A-Fa-f]{1,16}|[0-9]{1,20}", re.ASCII)
_WHOLE = ("config", "config1", "config2")


class Event(NamedTuple):
    """One event, with the fields of struct perf_event_attr."""

    type: int  # of the PMU
    config: int  # the event's code in the PMU
    config1: int = 0  # further bits of it
    config2: int = 0
    unit: str = "count"


class Absent(LookupError):
    """This machine lacks the event, other machines may have it; the text names the missing part."""


def _events(kind: int, unit: str = "count", **numbers: int) -> dict[str, Event]:
    return {name: Event(kind, number, unit=unit) for name, number in numbers.items()}


# The names of Colmet 0.6. Those of caches are PERF_TYPE_HW_CACHE with a bare PERF_COUNT_HW_CACHE_* number, as there:
# that counts read accesses to that cache, and cache_op_* and cache_result_* are the same as the cache of that number.
NAMES_06 = {
    **_events(_HARDWARE, cpu_cycles=0, instructions=1, cache_references=2, cache_misses=3, branch_instructions=4),
    **_events(_HARDWARE, branch_misses=5, bus_cycles=6, ref_cpu_cycles=9),
    **_events(_CACHE, cache_l1d=0, cache_ll=2, cache_dtlb=3, cache_itlb=4, cache_bpu=5, cache_node=6),
    **_events(_CACHE, cache_op_read=0, cache_op_prefetch=2, cache_result_access=0),
    **_events(_SOFTWARE, "nsec", cpu_clock=0, task_clock=1),
    **_events(_SOFTWARE, page_faults=2, context_switches=3, cpu_migrations=4, page_faults_min=5, page_faults_maj=6),
    **_events(_SOFTWARE, alignment_faults=7, emulation_faults=8, dummy=9, bpf_output=10),
}


def _kernel_names() -> dict[str, Event]:
    """Return the generic names of `perf list` that differ from those of 0.6 by more than dashes."""
    names = {
        "cycles": NAMES_06["cpu_cycles"],
        "branches": NAMES_06["branch_instructions"],
        "ref-cycles": NAMES_06["ref_cpu_cycles"],
        "stalled-cycles-frontend": Event(_HARDWARE, 7),
        "stalled-cycles-backend": Event(_HARDWARE, 8),
        "cs": NAMES_06["context_switches"],
        "faults": NAMES_06["page_faults"],
        "minor-faults": NAMES_06["page_faults_min"],
        "major-faults": NAMES_06["page_faults_maj"],
        "migrations": NAMES_06["cpu_migrations"],
        "cgroup-switches": Event(_SOFTWARE, 11),
    }
    caches = ("L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node")
    for number, cache in enumerate(caches):
        for operation, (word, words) in enumerate((("load", "loads"), ("store", "stores"), ("prefetch", "prefetches"))):
            for result, name in enumerate((words, f"{word}-misses")):
                names[f"{cache}-{name}"] = Event(_CACHE, number | operation << 8 | result << 16)
    return names


_KERNEL_NAMES = _kernel_names()


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()


_GENERIC = {_plain(name): event for name, event in {**_KERNEL_NAMES, **NAMES_06}.items()}


def find(name: str, host: Host) -> Event:
    """Return the event of a name: of 0.6, a generic one of `perf list`, ``pmu/event/``, ``pmu/term=1,.../``, ``r1a8``.

    Raises:
        Absent: this machine has no such PMU or event.
        ValueError: no such event can exist, or it cannot be counted for a job; the text says why.
    """
    generic = _GENERIC.get(_plain(name))
    if generic is not None:
        return generic
    if re.fullmatch(r"r[0-9A-Fa-f]{1,16}", name, re.ASCII):
        return Event(_RAW, int(name[1:], 16))
    match = _PMU.fullmatch(name)
    if match is None:
        if _NAME.fullmatch(name) and _read(host, f"{DEVICES}/cpu/events/{name}") is not None:
            return _of_pmu(name, "cpu", name, host)  # perf lists those of the CPU by their bare names, too
        raise ValueError(_unknown(name, host))
    pmu, terms, modifiers = match.groups()
    if modifiers:
        raise ValueError(f"{name!r}: the count cannot be limited by {modifiers!r}; leave it out")
    return _of_pmu(name, pmu, terms, host)


def _unknown(name: str, host: Host) -> str:
    from difflib import get_close_matches  # here: it is large, and rarely needed

    near = get_close_matches(name, [*NAMES_06, *_KERNEL_NAMES, *_listed(host)], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return (
        f"{name!r} is no event{hint} There are {', '.join(NAMES_06)}, the generic names of `perf list`, r<hex>, and "
        f"<pmu>/<event>/ or <pmu>/<term>=<number>,.../ for what is in {DEVICES}"
    )


def _listed(host: Host) -> Iterator[str]:
    """Return this machine's own events by their names in `perf list`."""
    for pmu in host.sorted_names(DEVICES):
        for event in host.sorted_names(f"{DEVICES}/{pmu}/events"):
            if "." not in event:  # power has energy-pkg.scale and energy-pkg.unit in addition to energy-pkg
                yield f"{pmu}/{event}/"


def _read(host: Host, path: str) -> str | None:
    """Return the text of a small file of sysfs; None if it does not exist."""
    try:
        return host.read(path)[:_MAX_FILE].decode("ascii", "replace").strip()
    except OSError:
        return None


def _of_pmu(name: str, pmu: str, terms: str, host: Host) -> Event:
    """Return the event of terms described by the PMU in its events/ and format/."""
    folder = f"{DEVICES}/{pmu}"
    kind = _read(host, f"{folder}/type") if _NAME.fullmatch(pmu) else None
    if kind is None:
        raise Absent(f"{name}: there is no PMU {pmu}, only {', '.join(host.sorted_names(DEVICES)) or 'none at all'}")
    if _read(host, f"{folder}/cpumask") is not None:
        raise ValueError(f"{name!r}: {pmu} counts for a whole socket or core, which cannot be split by job")
    if not re.fullmatch(r"[0-9]{1,9}", kind, re.ASCII):
        raise Absent(f"{name}: cannot parse {folder}/type {kind!r:.80}")
    configs = [0, 0, 0]
    for key, value in _terms(name, folder, terms, host).items():
        if key in _WHOLE:
            configs[_WHOLE.index(key)] |= value
        else:
            _place(configs, name, f"{folder}/format/{key}", value, host)
    return Event(int(kind), configs[0], configs[1], configs[2])


def _terms(name: str, folder: str, text: str, host: Host) -> dict[str, int]:
    """Return the numbers of an event's terms; the last of several counts."""
    found: dict[str, str] = {}
    for term in text.split(","):
        key, equals, number = term.partition("=")
        if not _NAME.fullmatch(key):
            raise ValueError(f"{name!r}: {term!r} is no term")
        if equals:
            found[key] = number
            continue
        event = _read(host, f"{folder}/events/{key}")
        if event is not None:
            for part in event.split(","):
                key, equals, number = part.partition("=")
                found[key] = number if equals else "1"
        elif _read(host, f"{folder}/format/{key}") is not None:
            found[key] = "1"
        else:
            raise Absent(f"{name}: there is no {folder}/events/{key}")
    return {key: _number(name, key, number) for key, number in found.items()}


def _number(name: str, key: str, text: str) -> int:
    if text == "?":
        raise ValueError(f"{name!r}: the event requires a number: add {key}=<number>")
    value = int(text, 16 if text[1:2] in ("x", "X") else 10) if _NUMBER.fullmatch(text) else 1 << 64
    if value >> 64:
        raise ValueError(f"{name!r}: {key}={text!r:.40} is no number of 64 bits")
    return value


def _place(configs: list[int], name: str, path: str, value: int, host: Host) -> None:
    """Set a term's bits as the PMU's format/ defines them, ``config:0-7,32-35``."""
    text = _read(host, path)
    if text is None:
        known = ", ".join(host.sorted_names(path.rpartition("/")[0]))
        raise Absent(f"{name}: there is no {path}, only {known or 'none at all'}")
    match = _FORMAT.fullmatch(text)
    if match is None:
        raise Absent(f"{name}: cannot parse {path} {text!r:.80}")
    rest = value
    for part in match[2].split(","):
        low, _, high = part.partition("-")
        width = int(high or low) - int(low) + 1
        if width < 1 or int(high or low) > 63:
            raise Absent(f"{name}: cannot parse {path} {text!r:.80}")
        configs[int(match[1] or 0)] |= (rest & (1 << width) - 1) << int(low)
        rest >>= width
    if rest:
        raise ValueError(f"{name!r}: {path.rpartition('/')[2]}={value:#x} is too large for {text}")


ABI = 2


class _Event(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("type", "config", "config1", "config2"))


class PerfLibrary:
    """lib_perf_hw, with the types of its functions; BackendUnavailable if it is not built, or of another Colmet."""

    def __init__(self) -> None:
        library = clib.load("lib_perf_hw", ABI, "LIB_PERFHW_PATH")
        self.open, self.read, self.close = library.perf_hw_open, library.perf_hw_read, library.perf_hw_close
        self.drop = library.perf_hw_drop
        numbers, handle, size = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_size_t
        events = ctypes.POINTER(_Event)
        self.open.argtypes = (ctypes.c_int, events, size, numbers, size, numbers, ctypes.POINTER(handle))
        self.read.argtypes = (handle, ctypes.POINTER(ctypes.c_uint64), size)
        self.drop.argtypes = (handle, size)
        self.close.argtypes = (handle,)
        self.close.restype = None


class EventCounters:
    """Events of one cgroup on some CPUs, counted from now on; `group` is the descriptor of its directory.

    `errors` has for each event 0, or the errno of its refusal. OSError: nothing can be counted, or EMFILE.
    """

    def __init__(self, library: PerfLibrary, group: int, events: Sequence[Event], cpus: Iterable[int]) -> None:
        count, packed = len(events), (_Event * len(events))(*[_Event(*event[:4]) for event in events])
        ordered = sorted(cpus)
        numbers = (ctypes.c_int * len(ordered))(*ordered)
        errors = (ctypes.c_int * count)()
        self._handle = ctypes.c_void_p()
        code = library.open(group, packed, count, numbers, len(ordered), errors, ctypes.byref(self._handle))
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        self.errors = list(errors)
        self._library = library
        self._counts = (ctypes.c_uint64 * (3 * len(events)))()

    def read(self) -> list[int]:
        """Return for each event its count, the ns enabled and the ns counted, summed over the CPUs."""
        code = self._library.read(self._handle, self._counts, len(self.errors))
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return self._counts[:]

    def drop(self, event: int) -> int:
        """Stop counting one of the events; return the number of descriptors released, 0 if others need them."""
        released: int = self._library.drop(self._handle, event)
        return released

    def close(self) -> None:
        """Release the descriptors; can be called twice."""
        self._library.close(self._handle)
        self._handle = ctypes.c_void_p()


def scaled(count: int, enabled_ns: int, running_ns: int) -> tuple[int | None, float | None]:
    """Return the value of an interval, and the counted share of the interval.

    The value is None if the job ran and the event never had a counter; the share is None if the job did not run.
    """
    if enabled_ns <= 0:
        return count, None
    if running_ns <= 0:
        return None, 0.0
    if running_ns >= enabled_ns:
        return count, 1.0
    return round(count * enabled_ns / running_ns), running_ns / enabled_ns
