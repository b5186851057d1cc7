"""Keep values of all nodes over time, for a map of nodes and times: by minute for an hour, by quarter for a day."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.live.latest_tables import HostTables, TablePair
from colmet.common.live.summary import DEVICE_TABLES, NODE_TABLES, Heard, measure_devices, measure_nodes

MAX_NODES = 5000
DIGITS = 4  # of a value in an answer
# By the keys of answers: the unit of the values.
MEASURES: Mapping[str, str] = {
    **{"cpu": "share", "memory": "share", "load": "tasks by CPU", "io": "bytes/s", "network": "bytes/s"},
    **{"power": "watts", "temperature": "celsius", "lag": "seconds"},
}

Values = npt.NDArray[np.float32]


class HistorySpan(NamedTuple):
    """A time range, in intervals."""

    step_s: int
    intervals: int


MINUTE_S = 60
SPANS: Mapping[str, HistorySpan] = {"hour": HistorySpan(MINUTE_S, 60), "day": HistorySpan(15 * MINUTE_S, 96)}


class HistoryQuery(NamedTuple):
    """A query for the values of all nodes over time."""

    measure: str  # a key of `colmet.web.node_history.MEASURES`
    span: str  # hour or day
    text: str = ""  # part of the name; "" for all
    offset: int = 0  # position of the first node
    limit: int = 100  # max nodes


class _Ring:
    """The latest intervals of one span: values by node, measure and interval; NaN is a missing value."""

    def __init__(self, span: HistorySpan) -> None:
        self.span = span
        self.values: Values = np.full((0, len(MEASURES), span.intervals), np.nan, np.float32)
        self.last = -1  # number of the newest interval, since 1970

    def move_to(self, number: int) -> None:
        """Begin an interval, and clear those between the newest one and it."""
        for cleared in range(max(self.last + 1, number - self.span.intervals + 1), number + 1):
            self.values[:, :, cleared % self.span.intervals] = np.nan
        self.last = number

    def grow(self, nodes: int) -> None:
        """Make room for more nodes."""
        more = np.full((nodes - len(self.values), *self.values.shape[1:]), np.nan, np.float32)
        self.values = np.concatenate([self.values, more])

    def numbers(self) -> list[int]:
        """Return the numbers of the intervals, the newest last."""
        return list(range(self.last - self.span.intervals + 1, self.last + 1))


class HistoryMemory:
    """Values of nodes over time. One thread records, any other reads.

    A value of a counter is its growth over the whole minute, that of another column its latest value; a quarter of an
    hour has the mean of its minutes. Nothing is known from before the start of this process. A node without a value in
    all of the kept time is dropped.

    Attributes:
        left_out: number of values of nodes without room.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._lock = threading.Lock()  # of all attributes
        self._rings = {name: _Ring(span) for name, span in SPANS.items()}
        self._place: dict[str, int] = {}  # by node
        self._free: list[int] = []
        self._former: Mapping[str, HostTables] = {}
        self._since: float | None = None

    def record(
        self, hosts: Sequence[tuple[str, HostTables]], heard: Mapping[str, Heard], taken: float, now: float
    ) -> None:
        """Add the values of the minute that ends; `taken` is by the monotonic clock, `now` in seconds since 1970."""
        paired = [(host, _over(self._former.get(host), kept)) for host, kept in hosts]
        rows = measure_nodes(paired, taken, int(now * 1e9), heard)
        devices = [*measure_devices(paired), *[{}] * (len(rows) - len(paired))]
        found = {
            row["node"]: [math.nan if one is None else one for one in _values(row, more)]
            for row, more in zip(rows, devices)
            if not row["silent"]
        }
        with self._lock:
            self._former = dict(hosts)
            self._since = now if self._since is None else self._since
            minutes = self._rings["hour"]
            number = max(minutes.last, int(now // MINUTE_S))  # also if the clock was set back
            if number != minutes.last:
                minutes.move_to(number)
            for node, values in found.items():
                at = self._at(node)
                if at is None:
                    self.left_out += 1
                else:
                    minutes.values[at, :, number % minutes.span.intervals] = values
            self._fold(minutes, number)

    def _fold(self, minutes: _Ring, number: int) -> None:
        """Set the present interval of the day to the mean of its minutes."""
        day = self._rings["day"]
        each = day.span.step_s // MINUTE_S
        if number // each != day.last:
            day.move_to(number // each)
            self._forget()
        some = [one % minutes.span.intervals for one in range(number - number % each, number + 1)]
        part = minutes.values[:, :, some]
        known = ~np.isnan(part)
        counts = known.sum(axis=2)
        sums = np.where(known, part, 0).sum(axis=2)
        day.values[:, :, day.last % day.span.intervals] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def _at(self, node: str) -> int | None:
        """Return the place of a node, a new one if there is room."""
        at = self._place.get(node)
        if at is None and (self._free or len(self._place) < MAX_NODES):
            if not self._free:
                begin = len(self._place)
                size = min(MAX_NODES, max(16, 2 * begin))
                for ring in self._rings.values():
                    ring.grow(size)
                self._free = list(range(begin, size))[::-1]
            at = self._place[node] = self._free.pop()
        return at

    def _forget(self) -> None:
        """Drop the nodes without a value in all of the kept time: they have gone."""
        known = [np.asarray((~np.isnan(ring.values)).any(axis=(1, 2))) for ring in self._rings.values()]
        for node, at in list(self._place.items()):
            if not any(some[at] for some in known):
                del self._place[node]
                self._free.append(at)

    def answer(self, query: HistoryQuery) -> dict[str, Any]:
        """Return the values of a measure, a row for each node, by name."""
        with self._lock:
            ring = self._rings[query.span]
            names = sorted(node for node in self._place if query.text in node)
            page = names[query.offset : query.offset + query.limit]
            numbers = ring.numbers() if self._since is not None else []
            at = [number % ring.span.intervals for number in numbers]
            places = [self._place[node] for node in page]
            values = ring.values[places, list(MEASURES).index(query.measure)][:, at]
            since = self._since
        return {
            "measure": query.measure,
            "unit": MEASURES[query.measure],
            "span": query.span,
            "step": ring.span.step_s,
            "since": since,
            "starts": [number * ring.span.step_s for number in numbers],
            "total": len(names),
            "offset": query.offset,
            "items": [{"node": node, "values": one} for node, one in zip(page, _shortened(values))],
        }


def _over(former: HostTables | None, kept: HostTables) -> HostTables:
    """Return the tables of nodes of a host, with those of the last record as the former ones."""
    tables: dict[str, TablePair] = {}
    for name in (*NODE_TABLES, *DEVICE_TABLES):
        pair = kept.tables.get(name)
        before = None if former is None else former.tables.get(name)
        if pair is not None and before is not None:
            earlier = before.latest
            if earlier.schema == pair.latest.schema and earlier.time_ns < pair.latest.time_ns:
                pair = pair._replace(former=earlier)
        if pair is not None:
            tables[name] = pair
    return kept._replace(tables=tables)


def _values(row: Mapping[str, Any], devices: Mapping[str, Any]) -> list[float | None]:
    """Return the values of a node, in the order of `MEASURES`."""
    load = None if row["load"] is None or not row["cpus"] else row["load"] / row["cpus"]
    return [
        *(row["cpu"], row["memory_share"], load, row["io"]),
        *(devices.get(key) for key in ("network", "power", "temperature")),
        row["lag"],
    ]


def _shortened(values: Values) -> list[list[float | None]]:
    """Return values for JSON, with a few digits; None (null) for a missing one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log10(np.abs(values.astype(np.float64))))
    scale = 10.0 ** (DIGITS - 1 - np.where(np.isfinite(power), power, 0))
    short = np.round(values * scale) / scale
    return [[one if math.isfinite(one) else None for one in row] for row in short.tolist()]
