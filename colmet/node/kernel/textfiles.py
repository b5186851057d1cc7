"""The kernel's text files: parsers of those of cgroups, CPUs and tasks, and sums of counters that restart.

A parser of a cgroup's file adds all values of the file, or none, except as noted. It raises ValueError or IndexError if
the file has another form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from itertools import compress
from typing import NamedTuple, TypeVar, Union

from colmet.common.errors import ParseError
from colmet.common.host.host import Host
from colmet.common.schema import Value
from colmet.node.jobs.job import Job

_Parsed = TypeVar("_Parsed")
Values = dict[str, Value]
Parser = Callable[[bytes, Values], None]
Columns = Mapping[str, Union[str, tuple[str, int]]]  # key in a file -> column, or column and factor of the number

# Larger numbers are no measured values: in v1, "unlimited" is 2^63 rounded down to pages, in old kernels 2^64 - 1, and
# an underflow in the kernel is as large.
_UNLIMITED = 1 << 62


def _measured(number: int) -> int:
    if not 0 <= number < _UNLIMITED:
        raise ValueError(f"{number} is out of range")
    return number


def parse_file(path: str, data: bytes, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Return the result of a parser for the data of a file; ParseError for another form."""
    try:
        return parse(data)
    except (ValueError, IndexError) as err:
        raise ParseError(path, data[:80]) from err


def number(column: str) -> Parser:
    """Return the parser of a file of one number."""

    def parse(data: bytes, values: Values) -> None:
        values[column] = _measured(int(data))

    return parse


def limit(column: str, beside: str = "") -> Parser:
    """Return the parser of a file of one number or ``max``; it adds the value of column `beside`, if named."""

    def parse(data: bytes, values: Values) -> None:
        if data.strip() == b"max":
            return
        found = _measured(int(data))
        if not beside:
            values[column] = found
        elif beside in values:
            values[column] = found + int(values[beside] or 0)

    return parse


class Keyed:
    """Parser of a file of ``key number`` lines.

    The places of the keys are kept from file to file: a kernel always writes them in the same order. The column of a
    missing key, or of a missing limit, is missing. `name` returns the key in `columns` of a key in the file.
    """

    def __init__(
        self,
        columns: Columns,
        limits: Mapping[str, str] | None = None,
        name: Callable[[bytes], bytes] = lambda key: key,
    ) -> None:
        self._columns = {
            key.encode(): (column, 1) if isinstance(column, str) else column for key, column in columns.items()
        }
        self._limits = {key.encode(): column for key, column in (limits or {}).items()}
        self._name = name
        self._keys: list[bytes] | None = None
        self._names: list[str] = []
        self._places: list[tuple[int, int]] = []
        self._limit_places: list[tuple[str, int]] = []

    def __call__(self, data: bytes, values: Values) -> None:
        """Add a file's numbers to `values`; if one is out of range, all others, and raise ValueError."""
        words = data.split()
        if words[::2] != self._keys:
            self._learn(words)
        found = [int(words[place]) * factor for place, factor in self._places]
        for column, place in self._limit_places:
            most = int(words[place])
            if most < _UNLIMITED:
                values[column] = most
        if found and (min(found) < 0 or max(found) >= _UNLIMITED):
            good = [0 <= number < _UNLIMITED for number in found]
            values.update(compress(zip(self._names, found), good))
            raise ValueError(f"{self._names[good.index(False)]} is out of range")
        values.update(zip(self._names, found))

    def _learn(self, words: list[bytes]) -> None:
        keys = [self._name(key) for key in words[::2]]
        if not words or len(words) % 2 or not all(word.isdigit() for word in words[1::2]):
            raise ValueError("not lines of a key and a number each")
        known = [(*self._columns[key], 2 * at + 1) for at, key in enumerate(keys) if key in self._columns]
        self._names = [column for column, _, _ in known]
        self._places = [(place, factor) for _, factor, place in known]
        self._limit_places = [(self._limits[key], 2 * at + 1) for at, key in enumerate(keys) if key in self._limits]
        self._keys = words[::2]


def count_cpus(data: bytes, values: Values) -> None:
    """Parse a list of CPUs, ``0-3,8``, into their number; an empty one is a v1 cpuset without CPUs yet."""
    cpus = parse_cpu_list(data)
    if cpus:
        values["cpus_allocated"] = len(cpus)


def pressure(what: str) -> Parser:
    """Return the parser of ``some avg10=0.00 ... total=123``, and ``full``, for cpu since Linux 5.13."""
    columns = {kind.encode(): f"{what}_pressure_{kind}" for kind in ("some", "full")}

    def parse(data: bytes, values: Values) -> None:
        found = {}
        for line in data.splitlines():
            rest, _, total = line.rpartition(b" total=")
            column = columns.get(rest[:4])
            if column is None:
                raise ValueError("not lines of some and full")
            found[column] = _measured(int(total))
        values.update(found)

    return parse


def has_counted(data: bytes) -> bool:
    """Return whether a file of v1's blkio, ``254:0 Read 4096``, has a number other than 0 for any device."""
    return any(len(line) == 3 and line[2] != b"0" for line in map(bytes.split, data.splitlines()))


class Blocks:
    """Sums over block devices, without devices that consist of others: the kernel counts the I/O of both."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[bytes, bool] = {}

    def counts(self, device: bytes) -> bool:
        """Return whether a device, by ``major:minor``, is counted.

        A device that consists of others is not, as the kernel lists these as well; nor is ``(unknown)``, a hidden path
        to an NVMe device with several.
        """
        known = self._known.get(device)
        if known is None:
            parts = f"/sys/dev/block/{device.decode('ascii', 'replace')}/slaves"
            known = self._known[device] = b":" in device and not self._host.sorted_names(parts)
        return known

    def v2(self, data: bytes, values: Values) -> None:
        """Parse ``254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6``; unused devices have no values.

        Linux before 6.2 prints devices without I/O in front of the next one: ``7:7 7:6 253:0 rbytes=...``.
        """
        sums = {b"rbytes": 0, b"wbytes": 0, b"rios": 0, b"wios": 0}
        counted = False
        for word in data.split():
            key, equals, text = word.partition(b"=")
            if not equals:
                if b":" not in word and word != b"(unknown)":
                    raise ValueError(f"{word!r} is neither a device nor a value")
                counted = self.counts(word)
            elif counted and key in sums:
                sums[key] += int(text)
        read, written, reads, writes = map(_measured, sums.values())
        values.update(io_read_bytes=read, io_write_bytes=written, io_read_ops=reads, io_write_ops=writes)

    def v1(self, read: str, write: str) -> Parser:
        """Return the parser of ``254:0 Read 4096``, six such lines a device, and ``Total 8192`` at the end.

        If all numbers are 0, the columns are missing: a device is listed because of uncounted I/O.
        """

        def parse(data: bytes, values: Values) -> None:
            words = data.split()
            if len(words) % 3 == 2 and words[-2] == b"Total":
                del words[-2:]
            if not words:
                return
            if len(words) % 3 or b"Read" not in words[1::3]:
                raise ValueError("not lines of a device, a direction and a number")
            sums = {b"Read": 0, b"Write": 0}
            for device, what, text in zip(words[::3], words[1::3], words[2::3]):
                if what in sums and self.counts(device):
                    sums[what] += int(text)
            if has_counted(data):
                values[read], values[write] = _measured(sums[b"Read"]), _measured(sums[b"Write"])

        return parse


MAX_CPUS = 1 << 16  # Linux is built for 8,192 at most
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_cpu_list(text: str | bytes) -> frozenset[int]:
    """Return CPU numbers from ``0-3,8,10-11``, as in cpuset.cpus; empty text is no CPU.

    The kernel writes each CPU once, ascending. Anything else is a ValueError: a short text cannot cause much work.
    """
    if isinstance(text, bytes):
        text = text.decode("ascii")
    found: list[int] = []
    after = 0  # the lowest number that may come
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not after <= low <= high < MAX_CPUS:
            raise ValueError(f"not an ascending list of CPUs: {part!r:.40}")
        found.extend(range(low, high + 1))
        after = high + 1
    return frozenset(found)


# By controller, as in Job.directory: the CPUs that a job may use, then, on old kernels, the CPUs it was given.
_CPU_FILES = (("cpuset", "cpuset.effective_cpus"), ("cpuset", "cpuset.cpus"), ("unified", "cpuset.cpus.effective"))


def cpu_files(job: Job) -> list[str]:
    """Return the paths of the files with the CPUs of a job; the first existing one counts."""
    directories = [(job.directory(controller), name) for controller, name in _CPU_FILES]
    return [f"{directory}/{name}" for directory, name in directories if directory is not None]


TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_EXITING = 0x4  # PF_EXITING


class Stat(NamedTuple):
    """A process, or a thread of it."""

    parent: int  # its parent process
    is_ending: bool  # whether the kernel is removing it
    cpu_ns: int  # its CPU time, without children
    charged_ns: int  # CPU time of the children it has waited for, and of theirs
    began_ns: int  # its start, since boot


def parse_stat(data: bytes) -> Stat:
    """Return the fields of /proc/<pid>/stat; ValueError or IndexError for another form."""
    fields = data[data.rfind(b")") + 1 :].split(None, 20)  # a name may contain anything
    own, charged, began = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]), int(fields[19])
    is_ending = bool(int(fields[6]) & _EXITING)
    return Stat(int(fields[1]), is_ending, own * TICK_NS, charged * TICK_NS, began * TICK_NS)


MAX_TOTAL = 2**63 - 1  # largest value of a column


class Sums:
    """Counters of several parts, added up. A total never decreases.

    A part that is gone or unreadable keeps its last values in the totals. If any counter of a part is lower than
    before, the part has restarted: its old values stay, and its new values are added in full.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}
        self._totals: dict[str, int] = {}

    def add(self, part: str, values: Mapping[str, int | None], whole: bool = True) -> None:
        """Add the current counters of a part, None if unreadable.

        `whole`: whether the value so far of a counter seen for the first time belongs in the totals, or only its later
        growth.
        """
        known = {name: value for name, value in values.items() if value is not None}
        last = self._last.get(part, {})
        if any(value < last.get(name, 0) for name, value in known.items()):
            last = dict.fromkeys(last, 0)
        for name, value in known.items():
            grown = value - last.get(name, 0 if whole else value)
            self._totals[name] = self._totals.get(name, 0) + grown
        self._last[part] = {**last, **known}

    def keep_only(self, parts: Collection[str]) -> None:
        """Forget all other parts: a later part of the same name is a new one. The totals stay."""
        for part in self._last.keys() - parts:
            del self._last[part]

    def totals(self) -> dict[str, int | None]:
        """Return the totals by counter; None for a total too large for any column."""
        return {name: total if total <= MAX_TOTAL else None for name, total in self._totals.items()}
