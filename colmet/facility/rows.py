"""Facility documents as rows: the same facts for the collector's outputs, in tables of job 0.

A list of users, unbounded, becomes a row per user; their number is in its own row, as in the document. User names are
as in the document: obfuscated there, obfuscated here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from colmet.common.schema import Sample, Schema, Table, Value
from colmet.common.tables.facility import DISKS, HOSTS, JOBS, JUPYTER, LOGINS, QUEUES, SCHEMAS, USERS

JOB = 0  # of all these rows
JUPYTER_KINDS = ("jupyter-ml", "jupyter-coffea")
_MAX_INT = (1 << 63) - 1
_SIZES = {schema.name: {f.name: int(f.dtype[1:]) for f in schema.fields if f.dtype[0] == "S"} for schema in SCHEMAS}
Row = dict[str, Optional[Any]]


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_INT else None


def _number(value: Any) -> float | None:
    if type(value) not in (int, float) or value != value or abs(value) > _MAX_INT:
        return None
    return float(value)


def _users(document: Mapping[str, Any], cluster: Any, node: Any) -> Iterator[tuple[Schema, Row]]:
    users = document.get("users")
    named = [user for user in users if isinstance(user, str)] if isinstance(users, list) else []
    for user, times in Counter(named).items():
        row = {"kind": document["kind"], "cluster": cluster, "login_node": node, "user": user, "times": times}
        yield USERS, row


def _rows_of(document: Mapping[str, Any]) -> Iterator[tuple[Schema, Row]]:
    """Yield the rows of one document; of `HOSTS`, a part of a row."""
    kind, cluster, node = document.get("kind"), document.get("cluster"), document.get("login_node")
    on_node = {"cluster": cluster, "login_node": node}
    if kind == "ssh":
        yield LOGINS, {**on_node, "users": _whole(document.get("ssh_user_count"))}
        yield from _users(document, cluster, node)
    elif kind in JUPYTER_KINDS:
        yield JUPYTER, {"kind": kind, "cluster": cluster, "users": _whole(document.get("jupyter_user_count"))}
        yield from _users(document, cluster, None)
    elif kind == "CPU":
        yield HOSTS, {**on_node, "load": _number(document.get("load"))}
    elif kind == "MEM":
        sizes = {f"memory_{name}": _whole(document.get(name)) for name in ("total", "available")}
        yield HOSTS, {**on_node, **sizes}
    elif kind == "NETWORK":
        network = document.get("network")
        if isinstance(network, Mapping):
            sizes = {f"network_{name}": _whole(network.get(name)) for name in ("sent", "received")}
            yield HOSTS, {**on_node, **sizes, "network_interval": _number(network.get("interval"))}
    elif kind == "DISK":
        sizes = {name: _whole(document.get(name)) for name in ("total", "used", "free")}
        where = {name: document.get(name) for name in ("device", "mount")}
        yield DISKS, {**on_node, **where, **sizes, "utilization": _number(document.get("utilization"))}
    elif kind == "condorqueue":
        names = ("idle", "running", "held", "allocated_cores", "allocated_mem")
        counts = {name: _whole(document.get(name)) for name in names}
        yield QUEUES, {"cluster": cluster, "queue": document.get("queue"), **counts}
    elif kind == "condorjob":
        who = {"id": document.get("Id"), "user": document.get("users"), "state": document.get("state")}
        yield JOBS, {"cluster": cluster, **who, "runtime": _whole(document.get("Runtime"))}


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
                host = hosts.setdefault((row["cluster"], row["login_node"]), {})
                if not host:
                    found.setdefault(HOSTS, []).append(host)
                host.update(row)
            else:
                found.setdefault(schema, []).append(row)
        unknown += not known
    return found, unknown


def _text(value: Any, size: int) -> bytes | None:
    """Return text in at most `size` bytes, cut between two characters; None for none."""
    if not isinstance(value, str) or not value:
        return None
    return value.encode(errors="replace")[:size].decode(errors="ignore").encode()


def tables_of(rows: Mapping[Schema, Iterable[Row]], time_ns: int, most_rows: int) -> Iterator[Table]:
    """Yield tables of these rows, with at most `most_rows` in each.

    Args:
        rows: by table, from `rows_of`.
        time_ns: of the documents, since the epoch.
        most_rows: of one table.
    """
    for schema, some in rows.items():
        sizes = _SIZES[schema.name]
        samples = []
        for row in some:
            values: dict[str, Value] = {
                name: _text(value, sizes[name]) if name in sizes else value for name, value in row.items()
            }
            samples.append(Sample(JOB, values))
        for start in range(0, len(samples), most_rows):
            yield Table.from_samples(schema, time_ns, samples[start : start + most_rows])
