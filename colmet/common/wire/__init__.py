"""Batches to bytes and back, in three dialects on one port.

The first bytes of a message identify its dialect: Colmet 0.6 starts with a metric name in ASCII letters, the others
with a msgpack map. Its first key is text in ours (v1) and an integer in the Rust node's. docs/wire.md describes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from colmet.common.errors import WireError
from colmet.common.schema import Batch
from colmet.common.wire import colmet06, colmet_rs, v1

# The largest message accepted. A node with 1,000 jobs and every backend sends less than 1 MiB a tick.
MAX_MESSAGE_BYTES = 8 << 20

ENCODERS: Mapping[str, Callable[[Batch], bytes]] = {"v1": v1.encode, "colmet06": colmet06.encode}


class Decoded(NamedTuple):
    """Content of one message."""

    dialect: str
    batches: tuple[Batch, ...]
    skipped: int = 0  # values unknown to the dialect's tables
    unfit: int = 0  # dropped rows, of tables with Colmet's own names but other kinds of values
    checksum: int = 0  # of the content; 0 in the dialects without numbers
    unfit_tables: int = 0  # the tables of these rows, and such tables without rows


def dialect_of(message: bytes) -> str:
    """Return the dialect of a message: v1, colmet06 or colmet_rs; WireError if it starts like none of them."""
    first = message[0] if message else 0
    if 0x80 <= first <= 0x8F:
        key_at = 1
    elif 0x41 <= first <= 0x7A:  # a letter: no msgpack map starts with one
        return "colmet06"
    elif first == 0xDE:
        key_at = 3
    elif first == 0xDF:
        key_at = 5
    else:
        raise WireError(f"starts like no dialect that Colmet knows: {message[:16]!r}")
    key = message[key_at] if len(message) > key_at else 0
    # fixstr or str8; an empty map is the Rust node's, with no jobs
    return "v1" if 0xA0 <= key <= 0xBF or key == 0xD9 else "colmet_rs"


def _fits(message: bytes) -> bool:
    return len(message) <= MAX_MESSAGE_BYTES


class Decoder:
    """Decodes messages of every dialect, from any number of senders.

    It keeps a bounded number of schemas, so that a description is parsed once.
    """

    def __init__(self) -> None:
        self._schemas = v1.SchemaCache()

    @property
    def new_fields(self) -> int:
        """Return the number of fields in descriptions parsed for the latest message, decodable or not."""
        return self._schemas.new_fields

    def decode(self, message: bytes, new_fields: Callable[[], int] = lambda: v1.MAX_SCHEMA_FIELDS) -> Decoded:
        """Return the batches of a message; `new_fields` returns how many fields its new descriptions may have.

        Raises:
            OverBudget: its descriptions have more new fields.
            Undescribed: it is in the short form, and one of its descriptions has not come.
            WireError: for any other defect; no other exception is raised.
        """
        schemas = self._schemas
        schemas.allow(new_fields)
        if message.startswith(v1.START) and len(message) <= MAX_MESSAGE_BYTES:  # most do; as `_decoded`, but faster
            batch, checksum = v1.decode(message, schemas)
            return Decoded._make(("v1", (batch,), 0, schemas.unfit_rows, checksum, schemas.unfit_tables))
        return self._decoded(message, schemas)

    def decode_together(self, messages: Sequence[bytes]) -> list[Decoded | WireError | None]:
        """Return what is cheaper to decode for many messages together: those of Colmet 0.6; None for each other one."""
        found: list[Decoded | WireError | None] = [None] * len(messages)
        those = [n for n, message in enumerate(messages) if message and 0x41 <= message[0] <= 0x7A and _fits(message)]
        for n, batches in zip(those, colmet06.decode_all([messages[n] for n in those])):
            found[n] = batches if isinstance(batches, WireError) else Decoded("colmet06", batches)
        return found

    def heads(self, message: bytes) -> Decoded:
        """Return the same, batches of our own dialect without tables, at little cost; only WireError is raised."""
        return self._decoded(message, None)

    def learn(self, text: bytes) -> None:
        """Keep a description for messages in the short form, by its text; WireError if it is not one."""
        self._schemas.learn(text)

    def _decoded(self, message: bytes, schemas: v1.SchemaCache | None) -> Decoded:
        if not _fits(message):
            raise WireError(f"{len(message)} bytes, more than the {MAX_MESSAGE_BYTES} that a message may have")
        dialect = dialect_of(message)
        if dialect == "v1":
            batch, checksum = v1.decode(message, schemas)
            if schemas is None:
                return Decoded(dialect, (batch,), checksum=checksum)
            return Decoded(dialect, (batch,), 0, schemas.unfit_rows, checksum, schemas.unfit_tables)
        if dialect == "colmet06":
            return Decoded(dialect, colmet06.decode(message))
        batches, skipped = colmet_rs.decode(message)
        return Decoded(dialect, batches, skipped)
