"""Facility documents as rows: the same facts for the collector's outputs, in tables of job 0.

A list of users, unbounded, becomes a row per user; their number is in its own row, as in the document. User names are
as in the document: obfuscated there, obfuscated here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from colmet.common.schema import Field, Sample, Schema, Table, Value
from colmet.common.tables.facility import DISKS, HOSTS, JOBS, JUPYTER, LOGINS, QUEUES, USERS

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
