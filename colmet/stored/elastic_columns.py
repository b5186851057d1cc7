"""Documents of a database as columns: JSON values, with the types that the index has guessed."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.errors import ColmetError
from colmet.common.schema import MISSING_INT, NAME
from colmet.stored.series import Series, by_host, missing_values

MAX_BYTES = 1 << 30  # of all columns of one table
INTEGERS = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
FLOATS = frozenset({"double", "float", "half_float", "scaled_float"})
GROUPS = frozenset({"object", "nested", "flattened"})
HEADER = frozenset({"hostname", "job_id", "timestamp"})


class Hit(NamedTuple):
    """A found document."""

    ms: int  # time of the sample, since 1970
    host: str  # its host
    id: str  # of the document
    index_name: str  # of its index
    source: Mapping[str, Any]  # its columns

    @property
    def place(self) -> tuple[int, str]:
        """Return the sort key of documents."""
        return self.ms, self.host


def kinds_of(types: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the kinds of columns, i, f or S as in numpy, by the types of fields."""
    return {
        name: "f" if known & FLOATS else "i" if known & INTEGERS else "S"
        for name, known in sorted((name, frozenset(known)) for name, known in types.items())
        if NAME.fullmatch(name)
        and name not in HEADER
        and not known <= GROUPS
        and not (name.endswith(".keyword") and name[: -len(".keyword")] in types)
    }


class PagedColumns:
    """Columns of a table gathered page by page; `kinds` are declared kinds of their fields."""

    def __init__(self, table: str, names: Sequence[str], kinds: Mapping[str, str]) -> None:
        self._table = table
        self._kinds = kinds
        self._hosts: dict[str, int] = {}
        self._times: list[npt.NDArray[np.int64]] = []
        self._numbers: list[npt.NDArray[np.int64]] = []  # of the rows' hosts
        self._columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._widths = dict.fromkeys(names, 8)
        self._count = 0

    def add(self, page: Sequence[Hit]) -> None:
        """Add some rows; raise ColmetError for too many."""
        if not page:
            return
        self._times.append(np.array([hit.ms for hit in page], dtype=np.int64) // 1000)
        numbers = [self._hosts.setdefault(hit.host, len(self._hosts)) for hit in page]
        self._numbers.append(np.array(numbers, dtype=np.int64))
        for name, parts in self._columns.items():
            column = column_of([hit.source.get(name) for hit in page], self._kinds[name])
            parts.append(column)
            self._widths[name] = max(self._widths[name], column.itemsize)
        self._count += len(page)
        if self._count * (16 + sum(self._widths.values())) > MAX_BYTES:
            raise ColmetError(
                f"{self._table}: the rows require more than {MAX_BYTES >> 20} MiB; ask for fewer columns or hosts, or "
                "for a shorter interval"
            )

    def series(self, job: int) -> list[Series]:
        """Return all rows, a series for each host."""
        if not self._count:
            return []
        columns = {}
        for name in self._columns:
            columns[name] = joined(self._columns[name], self._kinds[name])
            self._columns[name] = []
        names = sorted(self._hosts)
        ranks = {name: rank for rank, name in enumerate(names)}
        hosts = np.array([ranks[name] for name in self._hosts])[np.concatenate(self._numbers)]
        order = np.argsort(hosts, kind="stable")
        return by_host(self._table, job, names, hosts, np.concatenate(self._times), columns, order)


def by_job_and_host(
    table: str, names: list[str], jobs: Any, hosts: Any, times: Any, columns: Mapping[str, Any]
) -> Iterator[Series]:
    """Yield rows, by time, as a series for each job and host."""
    order = np.lexsort((hosts, jobs))
    jobs, hosts = jobs[order], hosts[order]
    begins = np.flatnonzero(np.append(True, (np.diff(jobs) != 0) | (np.diff(hosts) != 0)))
    for start, end in zip(begins.tolist(), [*begins[1:].tolist(), len(jobs)]):
        rows = order[start:end]
        values = {name: column[rows] for name, column in columns.items()}
        yield Series(table, names[int(hosts[start])], int(jobs[start]), times[rows], values)


def column_of(values: list[Any], declared: str) -> npt.NDArray[Any]:
    """Return JSON values as a column of their own type: the index guesses it from the first value, possibly wrongly."""
    types = {*map(type, values)} - {type(None)}
    if not types:
        return missing_values(len(values), declared)
    if types == {int}:
        try:
            return np.array([MISSING_INT if value is None else value for value in values], dtype=np.int64)
        except OverflowError:  # from 2**63 on
            types.add(float)
    if types <= {int, float}:
        floats = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
        floats[floats == MISSING_INT] = math.nan  # Colmet 0.6 wrote it
        return floats
    return np.array([_text(value) for value in values], dtype=np.bytes_)


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "replace")


def joined(parts: list[npt.NDArray[Any]], declared: str) -> npt.NDArray[Any]:
    """Return the concatenated parts of a column, in the most general of their kinds and the declared one."""
    kind = max([declared, *[part.dtype.kind for part in parts]], key="ifS".index)
    return np.concatenate([_as_kind(part, kind) for part in parts])


def _as_kind(part: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    have = part.dtype.kind
    if have == kind:
        return part
    missing = part == MISSING_INT if have == "i" else np.isnan(part)
    if kind == "f":
        return np.where(missing, math.nan, part.astype(np.float64))
    return np.where(missing, b"", part.astype(np.bytes_))
