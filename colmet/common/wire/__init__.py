"""Batches to bytes and back, in three dialects that share one port.

The dialect of a message is told from its first bytes: Colmet 0.6 starts with a metric name in ASCII letters, the
others with a msgpack map, whose first key is text in ours (v1) and an integer in the Rust node's. docs/wire.md
describes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from colmet.common.errors import WireError
from colmet.common.schema import Batch
from colmet.common.wire import colmet06, colmet_rs, v1

# The largest message accepted. A node with 1,000 jobs and every backend sends less than 1 MiB a tick.
MAX_MESSAGE_BYTES = 8 << 20

ENCODERS: Mapping[str, Callable[[Batch], bytes]] = {"v1": v1.encode, "colmet06": colmet06.encode}


class Decoded(NamedTuple):
    """What one message held."""

    dialect: str
    batches: tuple[Batch, ...]
    skipped: int = 0  # values whose meaning the dialect's tables do not give
    unfit: int = 0  # rows left out, of tables of Colmet's own names with other kinds of values


def dialect_of(message: bytes) -> str:
    """The dialect that a message is to be read in: v1, colmet06 or colmet_rs.

    Raises:
        WireError: none of them starts like this.
    """
    first = message[0] if message else 0
    if 0x80 <= first <= 0x8F:
        key_at = 1
    elif 0x41 <= first <= 0x7A:  # a letter: no msgpack map starts so
        return "colmet06"
    elif first == 0xDE:
        key_at = 3
    elif first == 0xDF:
        key_at = 5
    else:
        raise WireError(f"starts like no dialect that Colmet knows: {message[:16]!r}")
    key = message[key_at] if len(message) > key_at else 0
    # fixstr or str8; a map without any entry is the Rust node's, which has no jobs
    return "v1" if 0xA0 <= key <= 0xBF or key == 0xD9 else "colmet_rs"


class Decoder:
    """Decodes messages of every dialect, from any number of senders.

    It keeps the schemas it has seen, a bounded number of them, so that a description is parsed once.
    """

    def __init__(self) -> None:
        self._schemas = v1.SchemaCache()

    @property
    def new_fields(self) -> int:
        """Fields of the descriptions that were parsed for the latest message, whether it could be read or not."""
        return self._schemas.new_fields

    def decode(self, message: bytes, new_fields: int = v1.MAX_SCHEMA_FIELDS) -> Decoded:
        """The batches that a message holds.

        Args:
            message: its bytes.
            new_fields: how many fields of new descriptions are parsed at most.

        Raises:
            OverBudget: its descriptions have more new fields.
            WireError: for whatever is wrong with it; no other exception leaves here.
        """
        self._schemas.allow(new_fields)
        return self._decoded(message, self._schemas)

    def heads(self, message: bytes) -> tuple[Batch, ...]:
        """The batches that a message holds, those of our own dialect without tables: whose they are, at little cost.

        Raises:
            WireError: for whatever is wrong with it; no other exception leaves here.
        """
        return self._decoded(message, None).batches

    def _decoded(self, message: bytes, schemas: v1.SchemaCache | None) -> Decoded:
        if len(message) > MAX_MESSAGE_BYTES:
            raise WireError(f"{len(message)} bytes, more than the {MAX_MESSAGE_BYTES} that a message may have")
        dialect = dialect_of(message)
        if dialect == "v1":
            batch = v1.decode(message, schemas)
            return Decoded(dialect, (batch,), 0, schemas.unfit_rows if schemas is not None else 0)
        if dialect == "colmet06":
            return Decoded(dialect, colmet06.decode(message))
        batches, skipped = colmet_rs.decode(message)
        return Decoded(dialect, batches, skipped)
