"""Rows in HDF5 files: those of the collector, also while it writes them, and those of Colmet 0.6.

The rows of a table lie nearly in the order of time. So for reading by time each file is read once for the intervals of
the pieces of its tables; then each interval reads its pieces alone.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.host.files import size_of
from colmet.stored.library_tables import between_of, pieces_of, times_of
from colmet.stored.reading_process import SUFFIX, HeldFile, Reader, Unreadable, ask, files_of, printable
from colmet.stored.rows import Spooled, TableRows, rows_of, spool_of, tables_of
from colmet.stored.series import ROW_VALUES, HostRows, RowQuery, RowStore, Series, missing_values

PART_S = 0.3  # for one answer with times: a collector writes every second or two
ASK_S = 5.0  # for one answer with intervals
ASK_BYTES = 64 << 20  # of rows read for one answer
ASK_PARTS = 2000

Column = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")
_dtype = cache(np.dtype)  # segments have few types


class _Table(NamedTuple):
    """A table of a file, as `pieces_of` returns it."""

    job: int
    name: str
    columns: list[str]
    step: int  # rows of a piece
    row_bytes: int
    firsts: Ints  # of the pieces, seconds since 1970
    lasts: Ints


class _File(NamedTuple):
    """A file, and its tables."""

    inode: int
    tables: list[_Table]
    firsts: Ints  # of the tables
    lasts: Ints


class Hdf5History(RowStore):
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
        self._reader = Reader(tables_of, rows_of, spool_of, pieces_of, between_of, times_of)
        self._reader.left_s = self.left_s
        self._spooled = 0  # tables in the spool
        self._pieces: dict[str, _File] = {}  # by path, of `amounts`
        seen = set()
        for path in paths:
            found = files_of(path)
            if not found:
                name = printable(path)
                raise ConfigError(f"{name}: there is no such file, and none that is named {name}.<10 digits>{SUFFIX}")
            for file in found:
                real = os.path.realpath(file.path)
                if real not in seen and file.overlaps(since, until):
                    seen.add(real)
                    self._files.append(file)

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> dict[str, list[str]]:
        """Return the tables with rows of a job, and their columns except time, host and job; see `History.tables`."""
        found: dict[str, list[str]] = {}
        for more in self._each(partial(tables_of, job=job), RowQuery(job, "", (), since, until)):
            for table, columns in more.items():
                found[table] = list(dict.fromkeys([*found.get(table, []), *columns]))
        return dict(sorted(found.items()))

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History.read`."""
        found = [rows for rows in self._each(_asked(rows_of, query), query) if rows is not None]
        self._count_nameless(query, sum([rows.nameless for rows in found]))
        return series_of(found, query.table, query.job)

    def by_hosts(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`. Each file is read once, now."""
        read = _asked(spool_of, query)
        what = f"read {query.table}"
        self._spooled += 1
        try:
            found = [one for one in self._each(read, query, lambda share: self.progress(what, share)) if one]
        except BaseException:
            self._forget_spooled()
            raise
        self._count_nameless(query, sum([one.nameless for one in found]))
        rows = _SpooledRows(self._reader, found, query)
        weakref.finalize(rows, self._forget_spooled).atexit = False
        return rows

    def amounts(self, columns: Mapping[str, Collection[str]]) -> Mapping[int, int]:
        """Return the number of values by hour; see `RowStore`. Reads each file once."""
        found: Counter[int] = Counter()
        sizes = {file.path: size_of(file.path) for file in self._files}
        whole, done = max(1, sum(sizes.values())), 0
        failed: list[str] = []
        for file in self._files:
            try:
                self._read_pieces(file.path, columns, found, done / whole, sizes[file.path] / whole)
            except ConfigError as err:
                failed.append(str(err))
            done += sizes[file.path]
        self._report(failed, bool(self._pieces))
        return found

    def between(self, columns: Mapping[str, Collection[str]], first: int, last: int) -> Iterator[Series]:
        """Yield the rows of an interval; see `RowStore`. Rows that are written after `amounts` are not read."""
        found: defaultdict[tuple[int, str], list[TableRows]] = defaultdict(list)
        for path, file in self._pieces.items():
            of_file: defaultdict[tuple[int, str], list[TableRows]] = defaultdict(list)
            for parts in _parts_within(file, first, last):
                if _inode(path) != file.inode:
                    raise ColmetError(f"{path} was replaced meanwhile, as by colmet archive forget; run it again")
                for job, name, rows in ask(
                    self._reader, path, partial(between_of, parts=parts, since=first, until=last), lambda _: False
                ):
                    of_file[job, name].append(rows)
            for key, some in of_file.items():
                found[key].append(one_table(some))
        for (job, name), several in found.items():
            yield from series_of(several, name, job)

    @property
    def paths(self) -> list[str]:
        """Return the paths of the files."""
        return [file.path for file in self._files]

    def times(self, host: str | None = None) -> Iterator[tuple[int, str, str, npt.NDArray[np.int64]]]:
        """Yield the times of all rows of each file: job, table, host, and times in seconds since 1970.

        Raises:
            ConfigError: a file cannot be read.
        """
        name = None if host is None else host.encode("utf-8", "replace")
        for file in self._files:
            for found, _, _ in self._by_tables(file.path, partial(times_of, host=name, seconds=PART_S)):
                for job, table, of_host, times in found:
                    yield job, table, host_name(of_host), times

    def close(self) -> None:
        """End the reading process."""
        self._reader.close()

    def _read_pieces(
        self, path: str, columns: Mapping[str, Collection[str]], amounts: Counter[int], done: float, share: float
    ) -> None:
        wanted = {table: list(some) for table, some in columns.items()}
        inode = _inode(path)
        made: list[_Table] = []
        nameless_rows = 0
        for some, read_share, nameless in self._by_tables(path, partial(pieces_of, columns=wanted, seconds=ASK_S)):
            for *table, hours, counts in some:
                made.append(_Table(*table))
                for hour, count in zip(hours.tolist(), counts.tolist()):
                    amounts[hour] += count * (len(made[-1].columns) + ROW_VALUES)
            self.progress(f"look through {os.path.basename(path)}", done + share * read_share)
            nameless_rows += nameless
        if nameless_rows:
            self._warn(f"{path}: rows without a host or a time skipped: {nameless_rows}")
        firsts = np.array([one.firsts.min() for one in made], np.int64)
        lasts = np.array([one.lasts.max() for one in made], np.int64)
        self._pieces[path] = _File(inode, made, firsts, lasts)

    def _by_tables(self, path: str, read: partial[list[Any]]) -> Iterator[tuple[list[Any], float, int]]:
        """Yield the answers for the tables of a file: the answer, the share read so far, rows without a host."""
        after: list[Any] = []
        while True:
            asked = partial(read.func, **read.keywords, after=after)
            found, after, share, nameless = ask(self._reader, path, asked, lambda answer: bool(answer[3]))
            yield found, share, nameless
            if not after:
                return

    def _forget_spooled(self) -> None:
        """Empty the spool after its last table: a process that serves requests keeps the history open."""
        self._spooled -= 1
        if not self._spooled:
            self._reader.cut_spool(0)

    def _count_nameless(self, query: RowQuery, count: int) -> None:
        if count:
            self._warn(f"job_{query.job}/{query.table}: rows without a host or a time skipped: {count}")

    def _each(self, read: partial[T], query: RowQuery, progress: Callable[[float], None] = lambda _: None) -> list[T]:
        """Return the results of `read` for each file with possible rows of the query's interval.

        Raises:
            ConfigError: it fails for all of them.
        """
        done: list[T] = []
        failed: list[str] = []
        for file in self._files:
            if file.overlaps(query.since, query.until):
                try:
                    done.append(
                        ask(self._reader, file.path, read, lambda rows: bool(getattr(rows, "nameless", 0)), progress)
                    )
                except ConfigError as err:
                    failed.append(str(err))
        self._report(failed, bool(done))
        return done

    def _report(self, failed: Sequence[str], has_others: bool) -> None:
        """Warn of files that cannot be read; raise ConfigError if these are all."""
        if failed and not has_others:
            raise ConfigError(failed[0] if len(failed) == 1 else f"{failed[0]} (and {len(failed) - 1} more files)")
        for text in failed:
            self._warn(text)

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


class _SpooledRows(HostRows):
    """Rows of some files, each in the spool of the reading process."""

    def __init__(self, reader: Reader, files: Sequence[Spooled], query: RowQuery) -> None:
        self._reader = reader
        self._files = files
        self._query = query
        counts: Counter[str] = Counter()
        self._hosts = [[host_name(name) for name in file.names] for file in files]
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
            parts = [self._part(n, hosts, columns) for n in range(len(self._files))]
            return series_of(parts, self._query.table, self._query.job)
        except (Unreadable, ValueError, TypeError) as err:
            raise ColmetError(f"rows of {self._query.table} cannot be read: {err}") from err

    def _part(self, file: int, hosts: Collection[str], columns: Collection[str] | None) -> TableRows:
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


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}; it was there at the start: run it again") from err


def _parts_within(file: _File, first: int, last: int) -> Iterator[list[list[Any]]]:
    """Yield the parts of a file's tables with rows of an interval, as many as are read for one answer."""
    parts: list[list[Any]] = []
    size = 0
    for at in np.flatnonzero((file.firsts <= last) & (file.lasts >= first)).tolist():
        table = file.tables[at]
        pieces = np.flatnonzero((table.firsts <= last) & (table.lasts >= first))
        most = max(1, ASK_BYTES // (table.step * table.row_bytes))
        for run in np.split(pieces, np.flatnonzero(np.diff(pieces) > 1) + 1) if len(pieces) else ():
            for begin in range(int(run[0]), int(run[-1]) + 1, most):
                end = min(int(run[-1]) + 1, begin + most)
                parts.append([table.job, table.name, begin * table.step, end * table.step, table.columns])
                size += (end - begin) * table.step * table.row_bytes
                if size >= ASK_BYTES or len(parts) >= ASK_PARTS:
                    yield parts
                    parts, size = [], 0
    if parts:
        yield parts


def _asked(read: Callable[..., T], query: RowQuery) -> partial[T]:
    columns = None if query.columns is None else frozenset(query.columns)
    hosts = None if query.hosts is None else [host.encode("utf-8", "replace") for host in query.hosts]
    limits = {"since": query.since, "until": query.until, "hosts": hosts}
    return partial(read, job=query.job, table=query.table, columns=columns, **limits)


def _as_one(parts: Sequence[Column], kind: str) -> Column:
    """Return a column of segments with the types of `rows.TableRows`."""
    found = np.concatenate([missing_values(0, kind), *parts])
    return found if kind == "S" else found.astype(np.int64 if kind == "i" else np.float64, copy=False)


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
    bounds = np.searchsorted(hosts[order], np.arange(len(names) + 1)).tolist()
    is_in_order = bool((order[1:] == order[:-1] + 1).all())  # rows of one host
    made = []
    for name, first, last in zip(names, bounds, bounds[1:]):
        if last > first:
            rows = slice(int(order[first]), int(order[first]) + last - first) if is_in_order else order[first:last]
            values = {column: values[rows] for column, values in columns.items()}
            made.append(Series(table, host_name(name), job, times[rows], values))
    return made


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


def one_table(parts: Sequence[TableRows]) -> TableRows:
    """Return the rows of parts of one table as one."""
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys([name for part in parts for name in part.names]))
    place = {name: n for n, name in enumerate(names)}
    hosts = [np.array([place[name] for name in part.names], np.int64)[part.hosts] for part in parts]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return TableRows(np.concatenate([part.times for part in parts]), np.concatenate(hosts), columns, names, 0)


def host_name(name: bytes) -> str:
    """Return a stored name as text."""
    return name.decode("utf-8", "replace")
