"""The latest values of jobs, as metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from colmet.common.daemon.prometheus_text import Family, Number, labels, named
from colmet.common.live.latest_tables import HostTables, LatestTables, TablePair
from colmet.common.live.shares import Shares
from colmet.common.schema import Field, Rows, Schema, present

MAX_ROWS = 50_000
_OURS = frozenset({"host", "job", "user"})  # labels of every row, "user" only if known
Hosts = Sequence[tuple[str, HostTables]]


class JobMetrics:
    """Makes a page of the rows of jobs; of its `max_rows` each sender has a share."""

    def __init__(
        self, latest: LatestTables, max_rows: int = MAX_ROWS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._latest = latest
        self._max_rows = max_rows
        self._monotonic = monotonic
        self._rows = self._left_out = 0

    def counters(self) -> dict[str, int]:
        """Return the count of rows of the last page, and of rows dropped from all pages."""
        return {"rows": self._rows, "left_out": self._left_out}

    def families(self) -> Iterator[Family]:
        """Yield a family for each column of numbers, with the labels host, job, user and those of the row."""
        now = self._monotonic()
        hosts = [(host, kept.fresh(now)) for host, kept in self._latest.hosts()]
        tables = self._parts(hosts)
        names: set[str] = set()
        for name in sorted(tables):
            fields = {(field.name, field.kind): field for part in tables[name] for field in part.schema.fields}
            for field in fields.values():
                metric = named("colmet_job", name.removesuffix("_default"), field.name, kind=field.kind)
                if field.kind != "label" and field.dtype[0] != "S" and metric not in names:
                    names.add(metric)
                    yield Family(metric, field.kind, _help(name, field), _samples(tables[name], field))

    def _parts(self, hosts: Hosts) -> dict[str, list[_HostRows]]:
        """Return the rows of each table, for each host, up to the bounds."""
        users = _users(hosts)
        shares = Shares(self._max_rows)
        parts: dict[str, list[_HostRows]] = {}
        left_out = 0
        for host, kept in hosts:
            for name, pair in kept.tables.items():
                if pair.latest.schema.scope != "job":
                    continue
                for schema, rows in _current(pair, kept.jobs):
                    kept_rows = rows[: max(0, shares.room(kept.sender))]
                    shares.hold(kept.sender, len(kept_rows))
                    left_out += len(rows) - len(kept_rows)
                    parts.setdefault(name, []).append(_HostRows(host, schema, kept_rows, users))
        self._rows = shares.total
        self._left_out += left_out
        return parts


def _current(pair: TablePair, jobs: tuple[int, ...] | None) -> Iterator[tuple[Schema, Rows]]:
    """Yield the newest rows of each job: of `later`, then those of the other running jobs."""
    newer: set[int] = set()
    for table in (pair.later, pair.latest):
        if table is None:
            continue
        numbers = table.rows["job_id"].tolist()
        skipped = set(newer)
        if table is pair.latest and jobs is not None:
            skipped |= {*numbers} - {*jobs, 0}
        rows = table.rows
        if not skipped.isdisjoint(numbers):
            rows = rows[[number not in skipped for number in numbers]]
        newer.update(numbers)
        if len(rows):
            yield table.schema, rows


class _HostRows:
    """Rows of one table of one host, with their labels; `users` are by host and job."""

    def __init__(self, host: str, schema: Schema, rows: Rows, users: Mapping[tuple[str, int], str]) -> None:
        self.schema = schema
        self._host = host
        self._rows = rows
        self._users = users

    @cached_property
    def labelled(self) -> tuple[list[str], Rows]:
        """Return the labels of each row, and the rows, one for each set of labels."""
        first: dict[str, int] = {}
        for n, text in enumerate(self._labels()):
            first.setdefault(text, n)
        return list(first), self._rows[list(first.values())]

    def _labels(self) -> list[str]:
        columns = {
            named(field.name): [present(field, cell) for cell in self._rows[field.name]]
            for field in self.schema.fields
            if field.dtype[0] == "S" and field.name not in _OURS
        }
        found = []
        for n, number in enumerate(self._rows["job_id"].tolist()):
            pairs = {"host": self._host, "job": str(number)}
            user = self._users.get((self._host, number))
            if user:
                pairs["user"] = user
            for name, cells in columns.items():
                cell = cells[n]
                if isinstance(cell, bytes):
                    pairs[name] = cell.decode(errors="replace")
            found.append(labels(pairs))
        return found


def _samples(parts: Iterable[_HostRows], field: Field) -> Iterator[tuple[str, Number]]:
    for part in parts:
        own = next((one for one in part.schema.fields if one.name == field.name), None)
        if own is None or own.kind != field.kind or own.dtype[0] == "S":
            continue
        texts, rows = part.labelled
        column = rows[field.name]
        values = [float(str(cell)) for cell in column] if own.dtype == "f4" else column.tolist()
        for text, value in zip(texts, values):
            if value != own.missing and value == value:
                yield text, value


def _users(hosts: Hosts) -> dict[tuple[str, int], str]:
    """Return the users of jobs by host and job, from the tables with users."""
    users: dict[tuple[str, int], str] = {}
    for host, kept in hosts:
        for pair in kept.tables.values():
            for table in (pair.latest, pair.later):
                if table is not None and any(one.name == "user" and one.dtype[0] == "S" for one in table.schema.fields):
                    for number, user in zip(table.rows["job_id"].tolist(), table.rows["user"].tolist()):
                        users[host, number] = user.decode(errors="replace")
    return users


def _help(table: str, field: Field) -> str:
    unit = "" if field.unit in ("none", "count") else f", in {field.unit}"
    return f"{table} {field.name}{unit}. {field.help}".strip()
