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

from colmet.common.errors import OverBudget, Undescribed, WireError
from colmet.common.schema import Batch, Schema, Table, digest_of
from colmet.common.tables import misfits
from colmet.common.wire.limits import MAX_JOBS, at_most, checked_host, checked_int, scalars

VERSION = 1
KEYS = frozenset({"v", "host", "epoch", "seq", "time", "jobs", "tables"})
_VALUES = itemgetter("v", "host", "epoch", "seq", "time", "jobs", "tables")
NIL = b"\xc0"
FIXMAP_OF_ALL_KEYS = 0x80 + len(KEYS)
SHORT_BYTES = 8  # of a digest in a table without its description
LEFT_OUT: Any = object()  # in place of the description
CAME = b"\xa4came\xce"  # ends a shortened message, with the CRC-32 of the original behind it; readers skip it
MAX_SMALL_BYTES = 64 << 10
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
        self._allowed = MAX_INT
        self._schemas: OrderedDict[bytes, Schema] = OrderedDict()
        self._by_start: dict[bytes, Schema] = {}  # the same, by the start of the digest
        self._fields = 0

    def __len__(self) -> int:
        return len(self._schemas)

    def allow(self, new_fields: int) -> None:
        """Set the maximum number of fields in the descriptions to parse from now on."""
        self.new_fields = self.unfit_tables = self.unfit_rows = 0
        self._allowed = new_fields

    def get(self, digest: Any, description: Any) -> Schema:
        """Return the schema with this digest; its description is parsed if the digest is new.

        Without a description, the start of the digest is enough.

        Raises:
            Undescribed: the description is `LEFT_OUT`, and the digest is new.
            WireError: it is not a schema.
            OverBudget: it has more fields than allowed.
        """
        if type(digest) is not bytes or not (type(description) is bytes or description is LEFT_OUT):
            raise WireError("a table's digest or description is not a byte string")
        schema = self.known(digest, description)
        if schema is None:
            if description is LEFT_OUT:
                raise Undescribed(f"the description of table {digest[:SHORT_BYTES].hex()} has not come")
            text = inflated(description)
            fields = text.count(b"\n")
            if self.new_fields + fields > self._allowed:
                raise OverBudget(f"descriptions of more than {self._allowed} new fields", "fields")
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
    if count == 3:
        return [unpack(), LEFT_OUT, unpack(), unpack()]
    if count != 4:
        raise WireError("a table is not a list of digest, description, time and rows")
    return [unpack(), unpack(), unpack(), unpack()]


def _table(parts: list[Any], batch_time_ns: int, schemas: SchemaCache) -> Table:
    digest, description, time_ns, packed = parts
    schema = schemas.get(digest, description)
    size = schema.dtype.itemsize
    if type(packed) is not bytes or len(packed) % size:
        raise WireError(f"table {schema.name}: the rows are not whole rows of {size} bytes")
    # the sign bits of the job ids, the first 8 bytes of each row
    if not packed[7::size].isascii():
        raise WireError(f"table {schema.name}: a job id is negative")
    if len(packed) > size * MAX_JOBS:
        at_most(MAX_JOBS, len(np.unique(np.frombuffer(packed, schema.dtype)["job_id"])), "jobs in a table")
    time_ns = batch_time_ns if time_ns is None else checked_int(time_ns, "a table's time")
    return Table(schema, time_ns, packed)


def _checksum(fields: dict[str, Any]) -> int:
    """Return a checksum of the measured content: one for both forms of a message, and for all names of its host."""
    batch_time_ns = fields["time"]
    crc: int = (batch_time_ns + sum(fields["jobs"] or ())) & 0xFFFFFFFF
    for digest, _, time_ns, rows in fields["tables"]:
        if time_ns is not None and time_ns != batch_time_ns:
            crc = crc32(b"%d" % time_ns, crc)
        crc = crc32(rows, crc32(digest[:SHORT_BYTES], crc))
    return crc


def _batch(fields: dict[str, Any], schemas: SchemaCache | None) -> Batch:
    """Return the batch of a map's entries; every value is checked here, its type and its range.

    Without a cache of schemas the batch has no tables. A table with one of Colmet's own names and other kinds of values
    is dropped: its first sender would define columns unfit for the values of all others.
    """
    epoch, seq = checked_int(fields["epoch"], "epoch"), checked_int(fields["seq"], "seq")
    time_ns, jobs = checked_int(fields["time"], "time"), fields["jobs"]
    if jobs is not None:
        jobs = tuple([checked_int(job, "a job id") for job in jobs])
    tables = []
    columns = 0
    for parts in fields["tables"]:
        if schemas is None:
            break
        table = _table(parts, time_ns, schemas)
        columns += len(table.schema.names)
        if columns > MAX_MESSAGE_FIELDS:
            raise WireError(f"more than {MAX_MESSAGE_FIELDS} fields in the tables of a message")
        if table.schema.digest in schemas.unfit:
            schemas.unfit_tables += 1
            schemas.unfit_rows += len(table)
            continue
        tables.append(table)
    return Batch(checked_host(fields["host"]), epoch, seq, time_ns, jobs, tuple(tables))


def decode_known(message: bytes, schemas: SchemaCache | None) -> tuple[Batch, int] | None:
    """Return the result of `decode` for a small message in a node's usual form and with known tables, but faster.

    None for any other one, also for any defect. This is the collector's innermost loop: one pass, without names for
    the errors. The message's size bounds the memory allocated by `unpackb`.
    """
    if not message or len(message) > MAX_SMALL_BYTES or message[0] != FIXMAP_OF_ALL_KEYS:
        return None
    try:
        version, host, epoch, seq, batch_time_ns, jobs, described = _VALUES(msgpack.unpackb(message))
        if not (type(version) is type(epoch) is type(seq) is type(batch_time_ns) is int and version == VERSION):
            return None
        if (epoch | seq | batch_time_ns) >> 63:  # one of them is negative or above `MAX_INT`
            return None
        crc = batch_time_ns
        if jobs is not None:
            if type(jobs) is not list or len(jobs) > MAX_JOBS:
                return None
            for job in jobs:
                if type(job) is not int or job >> 63:
                    return None
            crc += sum(jobs)
            jobs = tuple(jobs)
        if type(described) is not list or len(described) > MAX_TABLES:
            return None
        crc &= 0xFFFFFFFF
        tables = []
        columns = 0
        for parts in described:
            if type(parts) is not list:
                return None
            if len(parts) == 3:
                digest, time_ns, packed = parts
                description = LEFT_OUT
            else:
                digest, description, time_ns, packed = parts
                if type(description) is not bytes:
                    return None
            if time_ns is None:
                time_ns = batch_time_ns
            elif type(time_ns) is not int or time_ns >> 63:
                return None
            elif time_ns != batch_time_ns:
                crc = crc32(b"%d" % time_ns, crc)
            crc = crc32(packed, crc32(digest[:SHORT_BYTES], crc))
            if schemas is not None:
                schema = schemas.known(digest, description)
                if schema is None or type(packed) is not bytes or schema.digest in schemas.unfit:
                    return None
                size = schema.row_bytes
                # the sign bits of the job ids, the first 8 bytes of each row
                if len(packed) % size or len(packed) > size * MAX_JOBS or not packed[7::size].isascii():
                    return None
                columns += len(schema.names)
                tables.append(Table(schema, time_ns, packed))
        if columns > MAX_MESSAGE_FIELDS:
            return None
        # same as Batch(...), in a third of the time
        return Batch._make((checked_host(host), epoch, seq, batch_time_ns, jobs, tuple(tables))), crc
    except Exception:  # noqa: BLE001 - msgpack's own types, ValueError, KeyError, ...
        return None


def decode(message: bytes, schemas: SchemaCache | None) -> tuple[Batch, int]:
    """Return the batch in a message and the checksum of its content; without a cache of schemas, it has no tables.

    Raises:
        Undescribed: it is in the short form, and `schemas` lacks one of its descriptions.
        WireError: the message is not a whole, allowed batch of version 1.
        OverBudget: its descriptions have more fields than `schemas` allows.
    """
    known = decode_known(message, schemas)
    if known is not None:
        return known
    try:
        fields = _read(message)
    except WireError:
        raise
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, MemoryError, ...
        raise WireError(f"not a whole message of this dialect: {type(err).__name__} {err}") from err
    if KEYS - fields.keys():
        raise WireError(f"the map lacks {', '.join(sorted(KEYS - fields.keys()))}")
    try:
        batch = _batch(fields, schemas)
    except Undescribed as err:
        err.host, err.epoch = checked_host(fields["host"]), fields["epoch"]
        raise
    try:
        return batch, _checksum(fields)
    except (TypeError, ValueError, OverflowError) as err:  # without schemas the tables are unchecked
        raise WireError(f"a table has parts of another type: {err}") from err
