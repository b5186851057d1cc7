"""Descriptions of tables: the text in a message that says which columns its rows have."""

from __future__ import annotations

import zlib

from colmet.common.errors import WireError
from colmet.common.schema import Field, Schema, blake2b
from colmet.common.wire import v1

SCHEMAS = [
    Schema("demo_default", "job", [Field("n", "count", "counter"), Field("f", "none", "gauge", dtype="f8")]),
    Schema("x", "node", [Field("a-b.c_d", "mbytes-usec", "label", dtype="S9999", fold="first")]),
]
SEEDS = [b"\1" + schema.text.encode() for schema in SCHEMAS] + [b"\0" + v1.pack_description(SCHEMAS[0])]


def one(data: bytes) -> None:
    """An accepted description is canonical. The first byte says whether the rest is text, or as it travels."""
    text, packed = (data[1:], zlib.compress(data[1:])) if data[:1] == b"\1" else (b"", data[1:])
    digest = blake2b(text, digest_size=16).digest() if text else SCHEMAS[0].digest
    try:
        schema = v1.parse_description(digest, v1.inflated(packed))
    except WireError:
        return
    assert schema.text.encode() == (text or SCHEMAS[0].text.encode())
    assert schema.dtype.names == ("job_id", *schema.names)
    assert len(schema.empty_rows(2)) == 2
