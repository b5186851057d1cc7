"""Colmet's own dialect: one msgpack map a batch (docs/wire.md).

Each table carries the digest of its schema, the schema's description as one opaque byte string, and its rows as
another. A reader parses a description only the first time it meets the digest.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np

from colmet.common.errors import WireError
from colmet.common.schema import Batch, Schema, Table
from colmet.common.wire.limits import MAX_JOBS, at_most, checked_host, checked_int, scalars

VERSION = 1
KEYS = frozenset({"v", "host", "epoch", "seq", "time", "jobs", "tables"})
NIL = b"\xc0"
MAX_KEYS = 64  # ours and those of newer nodes, which are skipped
MAX_TABLES = 256
MAX_DESCRIPTION_BYTES = 256 << 10
# Kept by a reader; the least recently used goes first. A field takes about 0.8 kB.
MAX_SCHEMAS = 1024
MAX_SCHEMA_FIELDS = 65536


@lru_cache(maxsize=256)
def pack_description(schema: Schema) -> bytes:
    """A schema's description as it travels: its text, deflated."""
    return zlib.compress(schema.text.encode(), 9)


def parse_description(digest: bytes, description: Any) -> Schema:
    """The schema that a description gives, if it is the one that the digest names.

    Raises:
        WireError: it is too long, damaged, not allowed, or another one.
    """
    if type(description) is not bytes:
        raise WireError("a table's description is not a byte string")
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(description, MAX_DESCRIPTION_BYTES)
        if not inflate.eof:
            raise WireError("a table's description is cut short or too long")
        schema = Schema.parse(text.decode("ascii"))
    except (zlib.error, ValueError) as err:
        raise WireError(f"a table's description cannot be read: {err}") from err
    if schema.digest != digest:
        raise WireError(f"the description of table {schema.name} is not the one that its digest names")
    return schema


class SchemaCache:
    """Schemas by digest, at most `MAX_SCHEMAS` of them with `MAX_SCHEMA_FIELDS` fields together."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[bytes, Schema] = OrderedDict()
        self._fields = 0

    def __len__(self) -> int:
        return len(self._schemas)

    def get(self, digest: Any, description: Any) -> Schema:
        """The schema with this digest; its description is parsed if the digest is new."""
        if type(digest) is not bytes:
            raise WireError("a table's digest is not a byte string")
        schema = self._schemas.get(digest)
        if schema is None:
            schema = self._schemas[digest] = parse_description(digest, description)
            self._fields += len(schema.fields)
            while len(self._schemas) > MAX_SCHEMAS or self._fields > MAX_SCHEMA_FIELDS:
                self._fields -= len(self._schemas.popitem(last=False)[1].fields)
        else:
            self._schemas.move_to_end(digest)
        return schema


def encode(batch: Batch) -> bytes:
    """One message for one batch. A batch without epoch and seq (read from an older dialect) raises ValueError."""
    if batch.epoch is None or batch.seq is None:
        raise ValueError("a batch without epoch and seq cannot be sent")
    tables = []
    for table in batch.tables:
        time_ns = None if table.time_ns == batch.time_ns else table.time_ns
        schema = table.schema
        tables.append([schema.digest, pack_description(schema), time_ns, table.rows.tobytes()])
    message: bytes = msgpack.packb(
        {
            "v": VERSION,
            "host": batch.host,
            "epoch": batch.epoch,
            "seq": batch.seq,
            "time": batch.time_ns,
            "jobs": batch.jobs,
            "tables": tables,
        }
    )
    return message


def _read(message: bytes) -> dict[str, Any]:
    """The map's entries under `KEYS`, of whatever type; `jobs` and the tables as lists of scalars."""
    source = scalars(message)
    unpack, array = source.unpack, source.read_array_header
    fields: dict[str, Any] = {}
    for _ in range(at_most(MAX_KEYS, source.read_map_header(), "keys")):
        key = unpack()
        if type(key) is not str:
            raise WireError(f"{key!r:.80} is not a key")
        if key in fields:
            raise WireError(f"the map has {key!r} twice")
        if key not in KEYS:
            source.skip()
        elif key == "tables":
            fields[key] = [_parts(unpack, array()) for _ in range(at_most(MAX_TABLES, array(), key))]
        elif key == "jobs" and not message.startswith(NIL, source.tell()):
            fields[key] = [unpack() for _ in range(at_most(MAX_JOBS, array(), key))]
        else:
            fields[key] = unpack()
            if key == "v" and (type(fields[key]) is not int or fields[key] != VERSION):
                raise WireError(f"wire version {fields[key]!r:.80}; this collector reads version {VERSION}: update it")
    if source.tell() != len(message):
        raise WireError("there are bytes after the map")
    return fields


def _parts(unpack: Callable[[], Any], count: int) -> list[Any]:
    if count != 4:
        raise WireError("a table is not a list of digest, description, time and rows")
    return [unpack(), unpack(), unpack(), unpack()]


def _table(parts: list[Any], batch_time_ns: int, schemas: SchemaCache) -> Table:
    digest, description, time_ns, packed = parts
    schema = schemas.get(digest, description)
    if type(packed) is not bytes or len(packed) % schema.dtype.itemsize:
        raise WireError(f"table {schema.name}: the rows are not whole rows of {schema.dtype.itemsize} bytes")
    rows = np.frombuffer(packed, dtype=schema.dtype)
    # a list's min() is many times faster than numpy's on the few rows of a message
    if packed and min(rows["job_id"].tolist()) < 0:
        raise WireError(f"table {schema.name}: a job id is negative")
    return Table(schema, batch_time_ns if time_ns is None else checked_int(time_ns, "a table's time"), rows)


def decode(message: bytes, schemas: SchemaCache) -> Batch:
    """The batch in a message.

    Raises:
        WireError: the message is not a whole, allowed batch of version 1.
    """
    try:
        fields = _read(message)
    except WireError:
        raise
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, MemoryError, ...
        raise WireError(f"not a whole message of this dialect: {type(err).__name__} {err}") from err
    lacking = KEYS - fields.keys()
    if lacking:
        raise WireError(f"the map lacks {', '.join(sorted(lacking))}")
    time_ns, jobs = checked_int(fields["time"], "time"), fields["jobs"]
    return Batch(
        checked_host(fields["host"]),
        checked_int(fields["epoch"], "epoch"),
        checked_int(fields["seq"], "seq"),
        time_ns,
        None if jobs is None else tuple([checked_int(job, "a job id") for job in jobs]),
        tuple([_table(parts, time_ns, schemas) for parts in fields["tables"]]),
    )
