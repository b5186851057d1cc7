"""Facility documents as rows for a collector, in tables of job 0, sent as by a node until they are acknowledged.

A list of users, unbounded, becomes a row per user; their number is in its own row, as in the document. User names are
as in the document: obfuscated there, obfuscated here.
"""

from __future__ import annotations

import argparse
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from colmet.common.config import keys
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.schema import Batch, Field, Sample, Schema, Table, Value
from colmet.common.tables.facility import DISKS, HOSTS, JOBS, JUPYTER, LOGINS, QUEUES, USERS
from colmet.common.transport import curve
from colmet.common.wire import control as control_wire
from colmet.common.wire import v1
from colmet.facility.sender import DEADLINE_S, Outcome
from colmet.node.delivery.link import NodeLink, open_uplinks
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.uplink import Requests, Times, Uplink

log = logging.getLogger(__name__)

WIRE = "v1"
ROWS_AT_ONCE = 1000  # of a table in one batch: some hundred kB
POLL_S = 0.05
HWM, RATE = 1000, 200.0
JOB = 0  # of all these rows
_MAX_INT = (1 << 63) - 1
# by kind of document: its table, and the fields of columns with another name
_KINDS: Mapping[str, tuple[Schema, Mapping[str, str]]] = {
    "ssh": (LOGINS, {"users": "ssh_user_count"}),
    "jupyter-ml": (JUPYTER, {"users": "jupyter_user_count"}),
    "jupyter-coffea": (JUPYTER, {"users": "jupyter_user_count"}),
    "CPU": (HOSTS, {}),
    "MEM": (HOSTS, {"memory_total": "total", "memory_available": "available"}),
    "NETWORK": (HOSTS, {f"network_{name}": name for name in ("sent", "received", "interval")}),
    "DISK": (DISKS, {}),
    "condorqueue": (QUEUES, {}),
    "condorjob": (JOBS, {"id": "Id", "user": "users", "runtime": "Runtime"}),
}
Row = dict[str, Any]  # unchecked values by column


def _rows_of(document: Mapping[str, Any]) -> Iterator[tuple[Schema, Row]]:
    """Yield the rows of one document; of `HOSTS`, a part of a row."""
    kind = str(document.get("kind"))
    if kind == "NETWORK":
        counted = document.get("network")
        document = {**document, **counted} if isinstance(counted, Mapping) else {}
    if kind not in _KINDS or not document:
        return
    schema, names = _KINDS[kind]
    fields = {column.name: names.get(column.name, column.name) for column in schema.fields}
    yield schema, {column: document[field] for column, field in fields.items() if field in document}
    users = document.get("users")
    if isinstance(users, list):
        about = {name: document.get(name) for name in ("kind", "cluster", "login_node")}
        for user, times in Counter(user for user in users if isinstance(user, str)).items():
            yield USERS, {**about, "user": user, "times": times}


def rows_of(documents: Iterable[Mapping[str, Any]]) -> tuple[dict[Schema, list[Row]], int]:
    """Return the rows of some documents by table, and the number of documents of kinds without a table.

    CPU, MEM and NETWORK documents of one machine make one row.
    """
    found: dict[Schema, list[Row]] = {}
    hosts: dict[tuple[Any, Any], Row] = {}
    unknown = 0
    for document in documents:
        known = False
        for schema, row in _rows_of(document):
            known = True
            if schema is HOSTS:
                host = hosts.setdefault((row.get("cluster"), row.get("login_node")), {})
                if not host:
                    found.setdefault(HOSTS, []).append(host)
                host.update(row)
            else:
                found.setdefault(schema, []).append(row)
        unknown += not known
    return found, unknown


def _value(field: Field, value: Any) -> Value:
    """Return a value as its column requires; None if it is missing or of another type."""
    if field.dtype[0] == "S":
        if not isinstance(value, str) or not value:
            return None
        # cut between two characters
        return value.encode(errors="replace")[: int(field.dtype[1:])].decode(errors="ignore").encode()
    if field.dtype == "f8":
        is_number = type(value) in (int, float) and abs(value) <= _MAX_INT  # NaN is none
        return float(value) if is_number else None
    return value if type(value) is int and 0 <= value <= _MAX_INT else None


def tables_of(rows: Mapping[Schema, Iterable[Row]], time_ns: int, most_rows: int) -> Iterator[Table]:
    """Yield tables of rows from `rows_of`, with at most `most_rows` in each."""
    for schema, some in rows.items():
        samples = [
            Sample(JOB, {field.name: _value(field, row.get(field.name)) for field in schema.fields}) for row in some
        ]
        for start in range(0, len(samples), most_rows):
            yield Table.from_samples(schema, time_ns, samples[start : start + most_rows])


def from_options(
    options: argparse.Namespace, stopping: Callable[[], bool] = lambda: False, times: Times | None = None
) -> CollectorOutput | None:
    """Return the output of the command line's options; None without a collector's address.

    ConfigError where an address or a key cannot be used. Tests shorten the times of the link.
    """
    if not options.zeromq_uri:
        return None
    times = times or Times()
    host_name = keys.check_name(f"{socket.gethostname()}-facility")  # colmet-node has the name without the suffix
    security = curve.from_options(options)
    if security is None:
        log.warning("%s", curve.OFF)
    link_options = argparse.Namespace(**vars(options), zeromq_link_uri=None, zeromq_hwm=HWM, zeromq_linger=0, wire=WIRE)
    return CollectorOutput(host_name, open_uplinks(link_options, host_name, times, security), times, stopping)


class CollectorOutput:
    """Output of rows to a collector, as from a node, kept in memory. For one thread; another one sends.

    `stopping` returns whether the program is to end soon.
    """

    def __init__(
        self,
        host_name: str,
        uplinks: Sequence[Uplink],
        times: Times | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unknown = 0  # documents of kinds without a table
        self._host_name = host_name
        self._uplinks = uplinks
        self._stopping = stopping
        self._seq = 0
        self._former = (0, 0)  # acknowledged and dropped, at the end of the run before
        self._is_open = True
        outbox = Outbox(time.time_ns())
        self._queue = SendQueue(v1.encode_short, outbox)
        nothing = {"error": "this is colmet-facility, which has nothing that can be configured from afar"}
        requests = Requests(lambda _content: control_wire.encode(nothing))
        self._link = NodeLink(
            host_name, outbox, uplinks, self._queue.take, self._queue.fd, HWM, RATE, times, requests=requests
        )
        self._link.start()

    def put(self, documents: Sequence[Mapping[str, Any]], time_ns: int) -> None:
        """Queue documents as rows; another thread keeps and sends them."""
        rows, unknown = rows_of(documents)
        self.unknown += unknown
        if unknown and (powers_of_ten(self.unknown) or self.unknown == unknown):
            log.warning("documents have no table, and are not among the rows documents=%d", self.unknown)
        batches: list[list[Table]] = [[]]
        for table in tables_of(rows, time_ns, ROWS_AT_ONCE):
            if sum(map(len, batches[-1])) >= ROWS_AT_ONCE:
                batches.append([])
            batches[-1].append(table)
        for tables in filter(None, batches):
            self._seq += 1
            # the jobs of this machine are not known here
            self._queue.put(Batch(self._host_name, self._queue.outbox.epoch, self._seq, time_ns, None, tuple(tables)))

    def finish(self, deadline_s: float = DEADLINE_S) -> Outcome:
        """Wait until all batches are acknowledged, for the deadline at most; return the outcome.

        With --interval, the unacknowledged ones are sent until the program ends.
        """
        until = time.monotonic() + deadline_s
        while True:
            acknowledged, dropped = self._queue.outbox.acknowledged, self._queue.dropped
            waiting = self._seq - acknowledged - dropped
            if waiting <= 0 or time.monotonic() >= until or self._stopping():
                break
            time.sleep(POLL_S)
        before, self._former = self._former, (acknowledged, dropped)
        sent, lost = acknowledged - before[0], dropped - before[1] + waiting
        log.info("rows for the collector: batches acknowledged=%d lost=%d", sent, lost)
        if waiting:
            log.error(
                "collector has not acknowledged all rows waiting=%d: they are lost when this program ends", waiting
            )
        return Outcome(sent, 0, lost)

    def close(self) -> None:
        """End the thread and close everything; also twice."""
        if not self._is_open:
            return
        self._is_open = False
        if not self._link.stop(self._queue.wake):  # it still uses everything
            return
        for uplink in self._uplinks:
            uplink.close()
        self._queue.close()
