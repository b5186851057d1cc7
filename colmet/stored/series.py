"""Stored rows as columns, the interface of every store, and the names of columns in the forms people write."""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from colmet.common.config.cli import near as nearest
from colmet.common.errors import ColmetError
from colmet.common.schema import MISSING_INT
from colmet.common.text import document

H = TypeVar("H", bound="History")

NODE = 0  # the job number of the node's own rows
ROW_VALUES = 3  # of a row besides its columns: time, host and job
SUFFIX = "_default"
_NUMBER = re.compile(r"(\d+)", re.ASCII)


@dataclass(frozen=True)
class Series:
    """Rows of one table on one host, of one job, by time.

    Attributes:
        table: its name, such as ``taskstats_default``.
        host: host of the measurement.
        job: its number; `NODE` for the node itself.
        times: seconds since 1970, shape (n,), ascending; one time may have several rows (GPUs, zones).
        columns: shape (n,) each, by name: int64, float64 or bytes, with -1, NaN or b"" for a missing value.
    """

    table: str
    host: str
    job: int
    times: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.times)

    @property
    def seconds(self) -> npt.NDArray[np.int64]:
        """Return the times without repetition."""
        return np.asarray(self.times[np.append(True, self.times[1:] != self.times[:-1])[: len(self)]])

    def within(self, first: int, last: int) -> Series:
        """Return the rows of an interval, both ends included."""
        return self._part(slice(np.searchsorted(self.times, first, "left"), np.searchsorted(self.times, last, "right")))

    def tail(self, count: int) -> Series:
        """Return the last rows."""
        return self._part(slice(max(0, len(self) - count), None))

    def selected(self, keep: npt.NDArray[np.bool_]) -> Series:
        """Return the rows of a mask, shape (n,)."""
        return self._part(np.flatnonzero(keep))

    def _part(self, part: slice | npt.NDArray[np.intp]) -> Series:
        return replace(self, times=self.times[part], columns={n: column[part] for n, column in self.columns.items()})

    def values(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column of numbers, NaN for a missing value or a missing column; shape (n,)."""
        column = self.columns.get(name)
        if column is None or column.dtype.kind not in "iuf":
            return np.full(len(self), np.nan)
        values = column.astype(np.float64)
        missing = column == -1  # 0.6 and HDF5 files have -1 in columns of any type
        if missing.any():
            values[missing] = np.nan
        return values


@dataclass(frozen=True)
class RowQuery:
    """The rows of a job in a table.

    Attributes:
        job: `NODE` for rows of the nodes themselves.
        table: its name; an unknown one has no rows.
        columns: names to return, if stored; None for all.
        since: seconds since 1970, inclusive; None for no bound.
        until: as `since`.
        hosts: only these; None for all.
    """

    job: int
    table: str
    columns: Collection[str] | None = None
    since: float | None = None
    until: float | None = None
    hosts: Collection[str] | None = None

    def __post_init__(self) -> None:
        for name in ("columns", "hosts"):  # so that equal queries are one key
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))


class HostRows(ABC):
    """The selected rows of a table, for reading them by host.

    Attributes:
        counts: number of rows of each host.
        first: time of the first row, seconds since 1970; 0 without rows.
        last: time of the last row.
    """

    counts: Mapping[str, int]
    first: int
    last: int

    @abstractmethod
    def read(self, hosts: Collection[str], columns: Collection[str] | None = None) -> list[Series]:
        """Return the rows of some hosts, a series for each, sorted by host; of the columns, only these."""


class HeldRows(HostRows):
    """Rows in memory."""

    def __init__(self, found: Sequence[Series]) -> None:
        having = [series for series in found if len(series)]
        self._found = {series.host: series for series in having}
        self.counts = {series.host: len(series) for series in having}
        self.first = min([int(series.times[0]) for series in having], default=0)
        self.last = max([int(series.times[-1]) for series in having], default=0)

    def read(self, hosts: Collection[str], columns: Collection[str] | None = None) -> list[Series]:
        """Return the rows of some hosts; see `HostRows`."""
        found = [self._found[host] for host in sorted(hosts) if host in self._found]
        if columns is None:
            return found
        return [replace(one, columns={n: v for n, v in one.columns.items() if n in columns}) for one in found]


class ReadingTooSlow(ColmetError):
    """A reading has reached its deadline. The message names no file or host."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"reading takes longer than {limit_s:g} s; ask for a shorter interval, fewer hosts or columns")


class History(ABC):
    """The stored rows. Also a context manager that closes it.

    Attributes:
        warnings: unreadable parts of a readable store, a line each.
        progress: called with what is done, in words, and the done share of it.

    Every method raises `colmet.common.errors.ColmetError`, with a remedy, if the store cannot be read.
    """

    warnings: Sequence[str] = ()
    progress: Callable[[str, float], None] = staticmethod(lambda _what, _share: None)
    _limit_s = _deadline = math.inf

    def allow(self, limit_s: float) -> None:
        """Limit reading to `limit_s` seconds from now on; after that it raises `ReadingTooSlow`."""
        self._limit_s, self._deadline = limit_s, time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return the seconds left for reading; infinite without a limit, ReadingTooSlow after the deadline."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise ReadingTooSlow(self._limit_s)
        return left_s

    @abstractmethod
    def tables(self, job: int, since: float | None = None, until: float | None = None) -> Mapping[str, Sequence[str]]:
        """Return the tables with rows of a job, and the columns of each except time, host and job; empty for none.

        Args:
            job: `NODE` for rows of the nodes themselves.
            since: seconds since 1970: files without rows from then on are skipped.
            until: seconds since 1970: files without rows up to then are skipped.
        """

    @abstractmethod
    def read(self, query: RowQuery) -> list[Series]:
        """Return rows, a series for each host, sorted by host."""

    def by_hosts(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts, without all rows in memory; valid up to `close`."""
        return HeldRows(self.read(query))

    @abstractmethod
    def close(self) -> None:
        """Release all resources; idempotent."""

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class RowsView(History):
    """A view of another history, which it does not close."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.progress = history.progress

    @property
    def warnings(self) -> Sequence[str]:  # type: ignore[override]  # read only
        """Return those of the history."""
        return self._history.warnings

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> Mapping[str, Sequence[str]]:
        """Return the tables with rows of a job; see `History.tables`."""
        return self._history.tables(job, since, until)

    def close(self) -> None:
        """Do nothing."""


class RowStore(History):
    """A store that is also read by time, whatever the job: for what is made from whole stores, in bounded memory."""

    @abstractmethod
    def amounts(self, columns: Mapping[str, Collection[str]]) -> Mapping[int, int]:
        """Return the number of values of some columns, by table, for each hour since 1970 with rows."""

    @abstractmethod
    def between(self, columns: Mapping[str, Collection[str]], first: int, last: int) -> Iterable[Series]:
        """Return the rows from `first` to `last`, seconds since 1970, of all jobs: a series for each job and host.

        `amounts` is called before, with the same columns.
        """


def missing_values(count: int, kind: str) -> npt.NDArray[Any]:
    """Return a column of missing values, of a kind of numpy: i, f or S."""
    if kind == "S":
        return np.zeros(count, dtype="S1")
    return np.full(count, MISSING_INT, dtype=np.int64) if kind == "i" else np.full(count, np.nan)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key to sort names with numbers by: node2 comes before node10."""
    parts = enumerate(_NUMBER.split(text[:100]))  # every second one is a number
    return (*[(0, int(part), "") if n % 2 else (1, 0, part) for n, part in parts if part], (1, 0, text))


def short(table: str) -> str:
    """Return the name of a table without the common suffix."""
    return table.removesuffix(SUFFIX)


def names_of(table: str, column: str) -> dict[str, None]:
    """Return the possible names of a column: alone, with its table, and with the table's short name."""
    return dict.fromkeys([column, f"{table}.{column}", f"{short(table)}.{column}"])


def near(text: str, tables: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return a hint on an unknown name: similar names of columns of these tables, or the page with all names."""
    names = {name: None for table, columns in tables for column in columns for name in names_of(table, column)}
    found = nearest(text, names, 5, 0.5)
    printable = [name[:100].encode("unicode_escape").decode() for name in found]
    return f"near it: {', '.join(printable)}" if printable else f"{document('metrics.md')} has all of them"


GROUP_BYTES = 20 << 20  # of the rows of several hosts at a time; copies come on top
MAX_HOST_BYTES = 1 << 30  # of the rows of one host


class GroupedRows(RowsView):
    """A history that reads each table once, for all groups of hosts; not closed by `close`.

    Attributes:
        hosts: of all groups; None for all in the store.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._opened: dict[RowQuery, HostRows] = {}
        self.hosts: Collection[str] | None = None

    def rows(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`."""
        if query not in self._opened:
            self._opened[query] = self._history.by_hosts(query)
        return self._opened[query]

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History.read`. Rows of some hosts are read with those of all groups, once."""
        if query.hosts is None or query.columns is None:
            return self._history.read(query)
        return self.rows(replace(query, hosts=self.hosts)).read(query.hosts)


def groups_of(tables: Iterable[tuple[HostRows, int]]) -> list[list[str]]:
    """Return the hosts with rows in some tables, in groups of limited size, sorted; `tables` have numbers of columns.

    Raises:
        ColmetError: the rows of one host are too many.
    """
    sizes: Counter[str] = Counter()
    for rows, columns in tables:
        for host, count in rows.counts.items():
            sizes[host] += count * 8 * (ROW_VALUES + columns)
    groups: list[list[str]] = []
    room = 0
    for host in sorted(sizes):
        if sizes[host] > MAX_HOST_BYTES:
            name = host if host.isprintable() else ascii(host)
            raise ColmetError(
                f"the rows on {name} require {sizes[host] >> 20} MiB, and the limit is {MAX_HOST_BYTES >> 20} MiB; ask "
                "for a shorter interval"
            )
        if sizes[host] > room:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(host)
        room -= sizes[host]
    return groups


def each_series(history: History, query: RowQuery) -> Iterator[Series]:
    """Yield rows by host, with those of a group of hosts in memory."""
    if query.hosts is not None:
        yield from history.read(query)
        return
    rows = history.by_hosts(query)
    for group in groups_of([(rows, len(query.columns or ()))]):
        yield from rows.read(group)
