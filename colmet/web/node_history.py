"""Keep values of all nodes over time, for a map of nodes and times: by minute for an hour, by quarter for a day."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.live.latest_tables import HostTables
from colmet.common.live.summary import DEVICE_TABLES, NODE_TABLES, Heard, measure_devices, measure_nodes
from colmet.web.series import short_values

MAX_NODES = 5000
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


@dataclass(eq=False)
class HistoryMemory:
    """Values of nodes over time. One thread records, any other reads.

    A value of a counter is its growth over the whole minute, that of another column its latest value; a quarter of an
    hour has the mean of its minutes. Nothing is known from before the start of this process. A node without a value in
    all of the kept time is dropped.
    """

    left_out: int = 0  # values of nodes without room

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # of all attributes
        # by node and span: the values by measure and interval, NaN for a missing one
        self._nodes: dict[str, dict[str, Values]] = {}
        self._last = dict.fromkeys(SPANS, -1)  # number of the newest interval since 1970, by span
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
            # the one that has just ended, as this is called when the next one begins; also if the clock was set back
            minute = max(self._last["hour"], int((now - MINUTE_S / 2) // MINUTE_S))
            each = SPANS["day"].step_s // MINUTE_S
            self._begin("hour", minute)
            self._begin("day", minute // each)
            for node, values in found.items():
                if node not in self._nodes:
                    if len(self._nodes) >= MAX_NODES:
                        self.left_out += 1
                        continue
                    shapes = {name: (len(MEASURES), span.intervals) for name, span in SPANS.items()}
                    self._nodes[node] = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
                self._nodes[node]["hour"][:, minute % SPANS["hour"].intervals] = values
            minutes = [one % SPANS["hour"].intervals for one in range(minute - minute % each, minute + 1)]
            parts = np.array([kept["hour"][:, minutes] for kept in self._nodes.values()])
            parts = parts.reshape(-1, len(MEASURES), len(minutes))  # also without nodes
            counts = (~np.isnan(parts)).sum(axis=-1)
            means = np.where(counts > 0, np.nansum(parts, axis=-1) / np.maximum(counts, 1), np.nan)
            for kept, mean in zip(self._nodes.values(), means):  # so far
                kept["day"][:, self._last["day"] % SPANS["day"].intervals] = mean

    def _begin(self, span: str, number: int) -> None:
        """Begin an interval: clear those since the newest one; drop nodes without a value in all that is kept."""
        count, last = SPANS[span].intervals, self._last[span]
        cleared = [one % count for one in range(max(last + 1, number - count + 1), number + 1)]
        for node, kept in [*self._nodes.items()] if cleared else []:
            kept[span][:, cleared] = np.nan
            if span == "day" and all(np.isnan(values).all() for values in kept.values()):
                del self._nodes[node]
        self._last[span] = number

    def answer(self, query: HistoryQuery) -> dict[str, Any]:
        """Return the values of a measure, a row for each node, by name."""
        span = SPANS[query.span]
        with self._lock:
            names = sorted(node for node in self._nodes if query.text in node)
            page = names[query.offset : query.offset + query.limit]
            last, since = self._last[query.span], self._since
            numbers = range(last - span.intervals + 1, last + 1) if since is not None else ()
            at = [number % span.intervals for number in numbers]
            measure = list(MEASURES).index(query.measure)
            values = [self._nodes[node][query.span][measure, at].tolist() for node in page]
        return {
            "measure": query.measure,
            "unit": MEASURES[query.measure],
            "span": query.span,
            "step": span.step_s,
            "since": since,
            "starts": [number * span.step_s for number in numbers],
            "total": len(names),
            "offset": query.offset,
            "items": [{"node": node, "values": one} for node, one in zip(page, map(short_values, values))],
        }


def _over(former: HostTables | None, kept: HostTables) -> HostTables:
    """Return the tables of nodes of a host, with those of the last record as the former ones."""
    tables = {name: kept.tables[name] for name in (*NODE_TABLES, *DEVICE_TABLES) if name in kept.tables}
    for name, pair in tables.items():
        if former is not None and name in former.tables:
            earlier = former.tables[name].latest
            if earlier.schema == pair.latest.schema and earlier.time_ns < pair.latest.time_ns:
                tables[name] = pair._replace(former=earlier)
    return kept._replace(tables=tables)


def _values(row: Mapping[str, Any], devices: Mapping[str, Any]) -> list[float | None]:
    """Return the values of a node, in the order of `MEASURES`."""
    load = None if row["load"] is None or not row["cpus"] else row["load"] / row["cpus"]
    return [
        *(row["cpu"], row["memory_share"], load, row["io"]),
        *(devices.get(key) for key in ("network", "power", "temperature")),
        row["lag"],
    ]
