"""Colmet's own dialect: one msgpack map a batch (docs/wire.md).

Each table has the digest of its schema, the schema's description as one opaque byte string, and its rows as another. A
reader parses a description only once for each digest. A message in the short form lacks descriptions: its reader has
them from earlier messages.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any
from zlib import crc32

import msgpack
import numpy as np
from msgpack import unpackb

from colmet.common.errors import OverBudget, Undescribed, WireError
from colmet.common.schema import Batch, Schema, Table, digest_of
from colmet.common.tables import misfits
from colmet.common.wire.limits import MAX_JOBS, at_most, checked_host, checked_int, scalars, shown

VERSION = 1
KEYS = frozenset({"v", "host", "epoch", "seq", "time", "jobs", "tables"})
_VALUES = itemgetter("v", "host", "epoch", "seq", "time", "jobs", "tables")
NIL = b"\xc0"
FIXMAP_OF_ALL_KEYS = 0x80 + len(KEYS)
START = bytes([FIXMAP_OF_ALL_KEYS]) + b"\xa1v\x01"  # of a message from `encode`
SHORT_BYTES = 8  # of a digest in a table without its description
LEFT_OUT: Any = object()  # in place of the description
CAME = b"\xa4came\xce"  # ends a shortened message, with the CRC-32 of the original behind it; readers skip it
MAX_SMALL_BYTES = 64 << 10
TABLE_FORM = "a table is not a list of digest, description, time and rows"
MAX_INT = (1 << 63) - 1
MAX_KEYS = 64  # ours, and those of newer nodes, which are skipped
MAX_TABLES = 256
MAX_DESCRIPTION_BYTES = 256 << 10
# Of all tables of a message. A node with every backend sends some 450; parsing 1,000 needs 5 ms.
MAX_MESSAGE_FIELDS = 4096
# Kept by a reader; the least recently used is dropped first. A field needs about 0.8 kB. `Described` counts on them.
MAX_SCHEMAS = 1024
MAX_SCHEMA_FIELDS = 65536


def pack_description(schema: Schema) -> bytes:
    """Return a schema's description as sent."""
    return schema.deflated


def inflated(description: bytes) -> bytes:
    """Return the text of a description as sent; WireError if it is too long or damaged."""
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(description, MAX_DESCRIPTION_BYTES)
    except zlib.error as err:
        raise WireError(f"a table's description cannot be read: {err}") from err
    if not inflate.eof:
        raise WireError("a table's description is cut short or too long")
    return text


def parse_description(digest: bytes, text: bytes) -> Schema:
    """Return the schema of a description with this digest; WireError if it is not allowed, or has another digest."""
    try:
        schema = Schema.parse(text.decode("ascii"))
    except ValueError as err:
        raise WireError(f"a table's description cannot be read: {err}") from err
    if schema.digest != digest:
        raise WireError(f"the description of table {schema.name} is not the one that its digest names")
    return schema


class SchemaCache:
    """Schemas by digest, at most `MAX_SCHEMAS` of them with `MAX_SCHEMA_FIELDS` fields together.

    Attributes:
        new_fields: number of fields in descriptions parsed, or refused, since `allow`.
        unfit: digests of descriptions with another kind of value in a column of Colmet's own tables; with that column.
        unfit_tables: number of such tables dropped since `allow`, also those without rows.
        unfit_rows: their rows.
    """

    def __init__(self) -> None:
        self.new_fields = self.unfit_tables = self.unfit_rows = 0
        self.unfit: dict[bytes, str] = {}
        self._allowed: Callable[[], int] = lambda: MAX_INT
        self._schemas: OrderedDict[bytes, Schema] = OrderedDict()
        self._by_start: dict[bytes, Schema] = {}  # the same, by the start of the digest
        self._fields = 0

    def __len__(self) -> int:
        return len(self._schemas)

    def allow(self, new_fields: Callable[[], int]) -> None:
        """Set what returns the maximum number of fields in the descriptions to parse from now on."""
        self.new_fields = self.unfit_tables = self.unfit_rows = 0
        self._allowed = new_fields

    def get(self, digest: Any, description: Any) -> Schema:
        """Return the schema with this digest; its description is parsed if the digest is new.

        Without a description, the start of the digest is enough.

        Raises Undescribed if the description is `LEFT_OUT`, and the digest is new; WireError if it is not a schema;
        OverBudget if it has more fields than allowed.
        """
        if type(digest) is not bytes or not (type(description) is bytes or description is LEFT_OUT):
            raise WireError("a table's digest or description is not a byte string")
        schema = self.known(digest, description)
        if schema is None:
            if description is LEFT_OUT:
                raise Undescribed(f"the description of table {digest[:SHORT_BYTES].hex()} has not come")
            text = inflated(description)
            fields = text.count(b"\n")
            allowed = self._allowed()
            if self.new_fields + fields > allowed:
                raise OverBudget(f"descriptions of more than {allowed} new fields", "fields")
            self.new_fields += fields
            schema = self._add(digest, text)
        return schema

    def known(self, digest: Any, description: Any) -> Schema | None:
        """Return the schema with this digest, whose start is enough if the description is `LEFT_OUT`; None if new."""
        schema = self._by_start.get(digest) if description is LEFT_OUT else self._schemas.get(digest)
        if schema is not None:
            self._schemas.move_to_end(schema.digest)
        return schema

    def learn(self, text: bytes) -> None:
        """Keep the schema of a description's text; WireError if it is not one."""
        digest = digest_of(text)
        if digest in self._schemas:
            self._schemas.move_to_end(digest)
        else:
            self._add(digest, text)

    def _add(self, digest: bytes, text: bytes) -> Schema:
        schema = self._schemas[digest] = self._by_start[digest[:SHORT_BYTES]] = parse_description(digest, text)
        self._fields += len(schema.fields)
        if columns := misfits(schema):
            self.unfit[digest] = f"{schema.name}.{columns[0]}"
        while len(self._schemas) > MAX_SCHEMAS or self._fields > MAX_SCHEMA_FIELDS:
            oldest, former = self._schemas.popitem(last=False)
            self._fields -= len(former.fields)
            self.unfit.pop(oldest, None)
            self._by_start.pop(oldest[:SHORT_BYTES], None)
        return schema


class Described:
    """Schemas described to one reader: at most half of those that a `SchemaCache` keeps, so the reader still has them.

    Beyond that all are forgotten, and described again.
    """

    def __init__(self) -> None:
        self._digests: set[bytes] = set()
        self._fields = 0

    def new(self, batches: Iterable[Batch]) -> list[Schema]:
        """Return the schemas of these batches to describe first; they count as described."""
        found = []
        digests = self._digests
        for batch in batches:
            for table in batch.tables:
                schema = table.schema
                if schema.digest not in digests:
                    self._fields += len(schema.fields)
                    if len(self._digests) >= MAX_SCHEMAS // 2 or self._fields > MAX_SCHEMA_FIELDS // 2:
                        self.clear()
                        self._fields = len(schema.fields)
                    self._digests.add(schema.digest)
                    found.append(schema)
        return found

    def clear(self) -> None:
        """Forget all: the reader may have none."""
        self._digests.clear()
        self._fields = 0


def encode(batch: Batch, came: int | None = None, is_short: bool = False) -> bytes:
    """Return one message for one batch. A batch without epoch and seq (from an older dialect) raises ValueError.

    Args:
        batch: to encode.
        came: checksum of the original message, if rows of it were dropped; for `shortened_from`.
        is_short: whether to leave out the descriptions.
    """
    if batch.epoch is None or batch.seq is None:
        raise ValueError("a batch without epoch and seq cannot be sent")
    tables = []
    for table in batch.tables:
        time_ns = None if table.time_ns == batch.time_ns else table.time_ns
        schema = table.schema
        if is_short:
            tables.append([schema.digest[:SHORT_BYTES], time_ns, table.packed])
        else:
            tables.append([schema.digest, pack_description(schema), time_ns, table.packed])
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
    return message if came is None else bytes([FIXMAP_OF_ALL_KEYS + 1]) + message[1:] + CAME + came.to_bytes(4, "big")


def encode_short(batch: Batch) -> bytes:
    """Return the same in the short form."""
    return encode(batch, is_short=True)


def describe(message: bytes, schemas: Iterable[Schema]) -> bytes:
    """Return the full form of a message from `encode`, with these schemas; KeyError if one is missing."""
    by_start = {schema.digest[:SHORT_BYTES]: schema for schema in schemas}
    fields = msgpack.unpackb(message)
    for parts in fields["tables"]:
        if len(parts) == 3:
            schema = by_start[parts[0]]
            parts[:1] = schema.digest, pack_description(schema)
    full: bytes = msgpack.packb(fields)
    return full


def shortened_from(message: bytes) -> int | None:
    """Return `came` of a message encoded with it; None for any other."""
    if message[0] != FIXMAP_OF_ALL_KEYS + 1 or message[-len(CAME) - 4 : -4] != CAME:
        return None
    return int.from_bytes(message[-4:], "big")


def _read(message: bytes) -> dict[str, Any]:
    """Return the map's entries under `KEYS`, of any type; `jobs` and the tables as lists of scalars."""
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
    if count not in (3, 4):
        raise WireError(TABLE_FORM)
    return [unpack() for _ in range(count)]


def _read_values(message: bytes) -> tuple[Any, ...]:
    """Return the values of a map under `KEYS`, of any type, in the order of `_VALUES`; WireError names a defect."""
    try:
        fields = _read(message)
    except WireError:
        raise
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, MemoryError, ...
        raise WireError(f"not a whole message of this dialect: {type(err).__name__} {err}") from err
    if KEYS - fields.keys():
        raise WireError(f"the map lacks {', '.join(sorted(KEYS - fields.keys()))}")
    return tuple(_VALUES(fields))


def decode(message: bytes, schemas: SchemaCache | None) -> tuple[Batch, int]:
    """Return the batch in a message and the checksum of its content; without a cache of schemas, it has no tables.

    Every value is checked here, its type and its range. The checksum is one for both forms of a message. A table with
    one of Colmet's own names and other kinds of values is dropped, and counted by `schemas`: its first sender would
    define columns unfit for the values of all others. This is the collector's innermost loop: one pass.

    Raises Undescribed if it is in the short form, and `schemas` lacks one of its descriptions; WireError if the message
    is not a whole, allowed batch of version 1; OverBudget if its descriptions have more fields than `schemas` allows.
    """
    version = None
    if message and len(message) <= MAX_SMALL_BYTES and message[0] == FIXMAP_OF_ALL_KEYS:
        # a small message in a node's usual form: its size bounds the memory that this takes
        try:
            version, host, epoch, seq, batch_time_ns, jobs, described = _VALUES(unpackb(message))
        except Exception:  # noqa: BLE001 - the careful reader names the defect
            version = None
    if version != VERSION or type(version) is not int:
        _, host, epoch, seq, batch_time_ns, jobs, described = _read_values(message)
    if not type(epoch) is type(seq) is type(batch_time_ns) is int or (epoch | seq | batch_time_ns) >> 63:
        for value, what in ((epoch, "epoch"), (seq, "seq"), (batch_time_ns, "time")):
            checked_int(value, what)
    crc = batch_time_ns
    if jobs is not None:
        if type(jobs) is not list:
            raise WireError(f"jobs is {shown(jobs)}, not a list")
        if len(jobs) > MAX_JOBS:
            at_most(MAX_JOBS, len(jobs), "jobs")
        for job in jobs:
            if type(job) is not int or job >> 63:
                checked_int(job, "a job id")
        crc += sum(jobs)
        jobs = tuple(jobs)
    if type(described) is not list:
        raise WireError(f"tables is {shown(described)}, not a list")
    if len(described) > MAX_TABLES:
        at_most(MAX_TABLES, len(described), "tables")
    crc &= 0xFFFFFFFF
    tables = []
    columns = 0
    for parts in described:
        if type(parts) is not list:
            raise WireError(TABLE_FORM)
        if len(parts) == 3:
            digest, time_ns, packed = parts
            description = LEFT_OUT
            is_bytes = type(digest) is type(packed) is bytes
        elif len(parts) == 4:
            digest, description, time_ns, packed = parts
            is_bytes = type(digest) is type(packed) is type(description) is bytes
        else:
            raise WireError(TABLE_FORM)
        if not is_bytes:
            raise WireError("a table's digest, description or rows are not a byte string")
        if time_ns is None:
            time_ns = batch_time_ns
        elif type(time_ns) is not int or time_ns >> 63:
            checked_int(time_ns, "a table's time")
        elif time_ns != batch_time_ns:
            crc = crc32(b"%d" % time_ns, crc)
        crc = crc32(packed, crc32(digest[:SHORT_BYTES], crc))
        if schemas is None:
            continue
        schema = schemas.known(digest, description)
        if schema is None:
            try:
                schema = schemas.get(digest, description)
            except Undescribed as err:
                err.host, err.epoch = checked_host(host), epoch
                raise
        size = schema.row_bytes
        if len(packed) % size:
            raise WireError(f"table {schema.name}: the rows are not whole rows of {size} bytes")
        # the sign bits of the job ids, the first 8 bytes of each row
        if not packed[7::size].isascii():
            raise WireError(f"table {schema.name}: a job id is negative")
        if len(packed) > size * MAX_JOBS:
            at_most(MAX_JOBS, len(np.unique(np.frombuffer(packed, schema.dtype)["job_id"])), "jobs in a table")
        columns += len(schema.names)
        if columns > MAX_MESSAGE_FIELDS:
            raise WireError(f"more than {MAX_MESSAGE_FIELDS} fields in the tables of a message")
        if schema.digest in schemas.unfit:
            schemas.unfit_tables += 1
            schemas.unfit_rows += len(packed) // size
        else:
            tables.append(Table(schema, time_ns, packed))
    # same as Batch(...), in a third of the time
    return Batch._make((checked_host(host), epoch, seq, batch_time_ns, jobs, tuple(tables))), crc
