"""Rows in HDF5 files: those of the collector, also while it writes them, and those of Colmet 0.6."""

from __future__ import annotations

import os
import re
import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from colmet.common.errors import ColmetError, ConfigError
from colmet.stored.rows import Reader, Spooled, TableRows, Unreadable, rows_of, spool_of, tables_of
from colmet.stored.series import History, HostRows, Series, by_host, missing_values

SUFFIX = ".hdf5"
# A file has the rows received while it was written. Late rows come from nodes that could not send: they keep them for
# A node keeps batches this long. Early rows come from nodes with a fast clock.
LATE_S = 7 * 86400
EARLY_S = 300
# A file being written can be read in the middle of a burst: it is read again.
LIVE_S = 300.0
BURST_S = 1.0  # missing rows may be there after this time
TRIES = 10
WAIT_S = 0.2


Column = npt.NDArray[Any]
T = TypeVar("T")


class HeldFile(NamedTuple):
    """A file, and the interval of its writing, in seconds since 1970."""

    path: str
    begins: float = float("-inf")
    ends: float = float("inf")

    def overlaps(self, since: float | None, until: float | None) -> bool:
        """Return whether rows of the interval may be in it."""
        return (since is None or self.ends >= since - EARLY_S) and (until is None or self.begins <= until + LATE_S)


def files_of(path: str) -> list[HeldFile]:
    """Return the files of a collector's ``--hdf5-filepath``, by time; empty without any.

    The path is a file, or the part before ``.<10 digits>.hdf5``.

    Raises:
        ConfigError: the directory cannot be read.
    """
    single = [HeldFile(path)] if os.path.isfile(path) else []
    directory, name = os.path.split(path)
    pattern = re.compile(rf"{re.escape(name)}\.(\d{{10}}){re.escape(SUFFIX)}", re.ASCII)
    try:
        found = [(int(match[1]), match[0]) for match in map(pattern.fullmatch, os.listdir(directory or ".")) if match]
    except (FileNotFoundError, NotADirectoryError):
        return single
    except (OSError, ValueError) as err:
        if single:
            return single
        raise ConfigError(f"{_shown(path)}: {getattr(err, 'strerror', None) or err}") from err
    found.sort()
    ends = [float(begins) for begins, _ in found[1:]] + [float("inf")]
    dated = [HeldFile(os.path.join(directory, name), begins, end) for (begins, name), end in zip(found, ends)]
    return single + dated


def _shown(path: str) -> str:
    # it could control a terminal, or add a line of its own
    return path if path.isprintable() else ascii(path)


class Hdf5History(History):
    """The rows in HDF5 files.

    A file stays open for the next read; one modified in the meantime is reopened.

    Args:
        paths: files, or values of a collector's ``--hdf5-filepath``.
        since, until: only the files with possible rows of this interval, in seconds since 1970.

    Attributes:
        warnings: unreadable parts of a readable store, a line each.

    Raises:
        ConfigError: there is no file.
    """

    def __init__(self, paths: Iterable[str], since: float | None = None, until: float | None = None) -> None:
        self.warnings: list[str] = []
        self._files: list[HeldFile] = []
        self._reader = Reader()
        self._reader.left_s = self.left_s
        self._spooled = 0  # tables in the spool
        seen = set()
        for path in paths:
            found = files_of(path)
            if not found:
                name = _shown(path)
                raise ConfigError(f"{name}: there is no such file, and none that is named {name}.<10 digits>{SUFFIX}")
            for file in found:
                real = os.path.realpath(file.path)
                if real not in seen and file.overlaps(since, until):
                    seen.add(real)
                    self._files.append(file)

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> dict[str, list[str]]:
        """Return the tables with rows of a job, and their columns except time, host and job; see `History.tables`."""
        found: dict[str, list[str]] = {}
        for more in self._each(partial(tables_of, job=job), since, until):
            for table, columns in more.items():
                found[table] = list(dict.fromkeys([*found.get(table, []), *columns]))
        return dict(sorted(found.items()))

    def read(
        self,
        job: int,
        table: str,
        columns: Sequence[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> list[Series]:
        """Return the rows of a job; see `History.read`."""
        wanted = None if columns is None else frozenset(columns)
        read = partial(rows_of, job=job, table=table, columns=wanted, since=since, until=until, hosts=_names(hosts))
        found = [rows for rows in self._each(read, since, until) if rows is not None]
        self._count_nameless(job, table, sum([rows.nameless for rows in found]))
        return series_of(found, table, job)

    def by_hosts(
        self,
        job: int,
        table: str,
        columns: Sequence[str],
        since: float | None = None,
        until: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`. Each file is read once, now."""
        wanted = frozenset(columns)
        read = partial(spool_of, job=job, table=table, columns=wanted, since=since, until=until, hosts=_names(hosts))
        what = f"read {table}"
        self._spooled += 1
        try:
            found = [one for one in self._each(read, since, until, lambda share: self.progress(what, share)) if one]
        except BaseException:
            self._forget_spooled()
            raise
        self._count_nameless(job, table, sum([one.nameless for one in found]))
        rows = _SpooledRows(self._reader, found, table, job)
        weakref.finalize(rows, self._forget_spooled).atexit = False
        return rows

    def _forget_spooled(self) -> None:
        """Empty the spool after its last table: a process that serves requests keeps the history open."""
        self._spooled -= 1
        if not self._spooled:
            self._reader.cut_spool(0)

    def _count_nameless(self, job: int, table: str, count: int) -> None:
        if count:
            self._warn(f"job_{job}/{table}: rows without a host or a time skipped: {count}")

    def close(self) -> None:
        """End the reading process."""
        self._reader.close()

    def _each(
        self,
        read: partial[T],
        since: float | None,
        until: float | None,
        progress: Callable[[float], None] = lambda _: None,
    ) -> list[T]:
        """Return the results of `read` for each file with possible rows of an interval.

        Raises:
            ConfigError: it fails for all of them.
        """
        done: list[T] = []
        failed: list[str] = []
        for file in self._files:
            if file.overlaps(since, until):
                try:
                    done.append(ask(self._reader, file.path, read, _is_torn, progress))
                except ConfigError as err:
                    failed.append(str(err))
        if failed and not done:
            raise ConfigError(failed[0] if len(failed) == 1 else f"{failed[0]} (and {len(failed) - 1} more files)")
        for text in failed:
            self._warn(text)
        return done

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _is_torn(found: object) -> bool:
    return isinstance(found, (TableRows, Spooled)) and found.nameless > 0


class _SpooledRows(HostRows):
    """Rows of some files, each in the spool of the reading process."""

    def __init__(self, reader: Reader, files: Sequence[Spooled], table: str, job: int) -> None:
        self._reader = reader
        self._files = files
        self._of = table, job
        counts: Counter[str] = Counter()
        self._hosts = [[_host(name) for name in file.names] for file in files]
        self._counts = [file.counts.reshape(len(file.segments), len(file.names)) for file in files]
        for names, by_segment in zip(self._hosts, self._counts):
            for host, count in zip(names, by_segment.sum(axis=0).tolist()):
                counts[host] += count
        self.counts = counts
        self.first = min([file.first for file in files if file.names], default=0)
        self.last = max([file.last for file in files if file.names], default=0)

    def read(self, hosts: Collection[str], columns: Collection[str] | None = None) -> list[Series]:
        """Return the rows of some hosts; see `HostRows`."""
        try:
            return series_of([self._part(n, hosts, columns) for n in range(len(self._files))], *self._of)
        except (Unreadable, ValueError, TypeError) as err:
            raise ColmetError(f"rows of {self._of[0]} cannot be read: {err}") from err

    def _part(self, file: int, hosts: Collection[str], columns: Collection[str] | None) -> TableRows:
        """Return the rows of some hosts in a file."""
        spooled = self._files[file]
        wanted = frozenset(hosts)
        numbers = np.flatnonzero([host in wanted for host in self._hosts[file]])
        # hosts side by side
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
        every = [("", "i"), *[(name, kind) for name, kind in spooled.columns]]  # the times come first
        chosen = [n for n, (name, _) in enumerate(every) if not n or columns is None or name in columns]
        parts: list[list[Column]] = [[] for _ in chosen]
        owners = [np.empty(0, np.int64)]
        for (offset, types), counts in zip(spooled.segments, self._counts[file]):
            kinds = [*map(_dtype, types)]
            ends = np.concatenate(([0], np.cumsum(counts)))
            offsets = offset + int(ends[-1]) * np.cumsum([0, *[kind.itemsize for kind in kinds]])
            for run in runs:
                start, count = int(ends[run[0]]), int(ends[run[-1] + 1] - ends[run[0]])
                if count:
                    owners.append(np.repeat(run, counts[run]))
                    for n, part in zip(chosen, parts):
                        size = kinds[n].itemsize
                        data = self._reader.spooled(int(offsets[n]) + start * size, count * size)
                        part.append(np.frombuffer(data, kinds[n]))
        made = {every[n][0]: _as_one(part, every[n][1]) for n, part in zip(chosen, parts)}
        return TableRows(made.pop(""), np.concatenate(owners), made, spooled.names, 0)


def _names(hosts: Collection[str] | None) -> list[bytes] | None:
    return None if hosts is None else [host.encode("utf-8", "replace") for host in hosts]


_dtype = cache(np.dtype)  # segments have few types


def _host(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _as_one(parts: Sequence[Column], kind: str) -> Column:
    """Return a column of segments with the types of `rows.TableRows`."""
    found = np.concatenate([missing_values(0, kind), *parts])
    return found if kind == "S" else found.astype(np.int64 if kind == "i" else np.float64, copy=False)


def ask(
    reader: Reader,
    path: str,
    read: partial[T],
    torn: Callable[[T], bool],
    progress: Callable[[float], None] = lambda _: None,
) -> T:
    """Return the result of `read` for a file; for one being written, with retries.

    Args:
        reader: the reading process.
        path: of the file.
        read: one of `colmet.stored.rows.READS` with its keyword arguments.
        torn: whether a result is from the middle of a burst, with rows ahead of their values.
        progress: called with the share of a table that is read.

    Raises:
        ConfigError: it cannot be read.
    """
    kept_bytes = reader.spool_bytes
    for left in reversed(range(TRIES)):
        reader.cut_spool(kept_bytes)
        try:
            found = reader.ask(path, read, progress)
            if not left or not torn(found) or not is_live(path):
                return found
        except Unreadable as err:
            if not left or not err.may_change or not is_live(path):
                reader.cut_spool(kept_bytes)
                raise ConfigError(f"{_shown(path)}: cannot be read: {err}") from err
        time.sleep(WAIT_S)
    raise AssertionError("unreachable")


def is_live(path: str, within_s: float = LIVE_S) -> bool:
    """Return whether a file was written to within the last seconds."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < within_s
    except OSError:
        return False


def series_of(files: Sequence[TableRows], table: str, job: int) -> list[Series]:
    """Return rows of some files as a series for each host."""
    names = sorted({name for rows in files for name in rows.names})
    if not names:
        return []
    at = {name: n for n, name in enumerate(names)}
    hosts = np.concatenate([np.array([at[n] for n in rows.names], np.int64)[rows.hosts] for rows in files])
    times = np.concatenate([rows.times for rows in files])
    columns = {
        name: _joined([rows.columns.get(name) for rows in files], [len(rows.times) for rows in files])
        for name in dict.fromkeys([name for rows in files for name in rows.columns])
    }
    order = np.argsort(hosts.astype(np.uint16) if len(names) <= 1 << 16 else hosts, kind="stable")
    in_order = times[order]
    if ((np.diff(in_order) < 0) & (np.diff(hosts[order]) == 0)).any():
        order = np.lexsort((times, hosts))
    if len(files) > 1:
        source = np.repeat(np.arange(len(files)), [len(rows.times) for rows in files])
        order = order[_once(hosts[order], times[order], source[order], {n: c[order] for n, c in columns.items()})]
    return by_host(table, job, [_host(name) for name in names], hosts, times, columns, order)


def _joined(parts: Sequence[Column | None], counts: Sequence[int]) -> Column:
    """Return a column of some files, missing in files without it or with another kind of value than the last."""
    there = [part for part in parts if part is not None]
    if len(parts) == 1:
        return there[0]
    kind = there[-1].dtype.kind
    if kind in "if" and any(part.dtype.kind == "f" for part in there):
        kind = "f"
    made: list[Column] = []
    for part, count in zip(parts, counts):
        if part is not None and part.dtype.kind == "i" and kind == "f":
            made.append(np.where(part == -1, np.nan, part))
        elif part is not None and part.dtype.kind == kind:
            made.append(part)
        else:
            made.append(missing_values(count, kind))
    return np.concatenate(made)


def _once(
    hosts: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    columns: Mapping[str, Column],
) -> npt.NDArray[np.bool_]:
    """Return a mask that drops rows repeated in several files; of equal rows as many stay as in the file with most.

    The rows are sorted by host, time and file (`source`).
    """
    keep = np.ones(len(times), bool)
    same = (hosts[1:] == hosts[:-1]) & (times[1:] == times[:-1])
    group = np.concatenate(([0], np.cumsum(~same)))
    mixed = np.unique(group[1:][same & (source[1:] != source[:-1])])
    at = np.flatnonzero(np.isin(group, mixed))
    if not len(at):
        return keep
    fields = [("group", np.int64), *[(f"c{n}", values.dtype) for n, values in enumerate(columns.values())]]
    packed = np.empty(len(at), np.dtype(fields))
    packed["group"] = group[at]
    for n, values in enumerate(columns.values()):
        packed[f"c{n}"] = values[at]
    key = np.unique(packed.view(f"V{packed.dtype.itemsize}"), return_inverse=True)[1].reshape(-1)
    files = source[at]
    order = np.lexsort((files, key))
    begins = np.concatenate(([True], (key[order][1:] != key[order][:-1]) | (files[order][1:] != files[order][:-1])))
    starts = np.flatnonzero(begins)
    nth = np.empty(len(at), np.int64)
    nth[order] = np.arange(len(at)) - starts[np.cumsum(begins) - 1]
    _, first = np.unique(key * (int(nth.max()) + 1) + nth, return_index=True)
    keep[at] = False
    keep[at[first]] = True
    return keep
