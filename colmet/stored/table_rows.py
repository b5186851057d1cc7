"""Rows of HDF5 files as series: those of several files, or of parts of one, without repeated rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.stored.rows import TableRows
from colmet.stored.series import Series, by_host, missing_values

Column = npt.NDArray[Any]


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
    return by_host(table, job, [host_name(name) for name in names], hosts, times, columns, order)


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
