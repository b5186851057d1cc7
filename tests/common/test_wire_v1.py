"""Colmet's own dialect, and how the three are distinguished."""

from __future__ import annotations

import hashlib
import math
import random
import re
import string
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.errors import Undescribed, WireError
from colmet.common.schema import FOLDS, KINDS, RESERVED, UNITS, Batch, Field, Sample, Schema, Table
from colmet.common.wire import MAX_MESSAGE_BYTES, Decoder, colmet06, dialect_of, v1
from colmet.common.wire.limits import MAX_JOBS

HERE = Path(__file__).parents[1]
SCHEMA = Schema("demo_default", "job", [Field("reads", "count", "counter"), Field("load", "none", "gauge", dtype="f8")])
TABLE = Table.from_samples(SCHEMA, 5, [Sample(7, {"reads": 3}), Sample(8, {"load": 0.5})])
BATCH = Batch("node-1.example", 1_700_000_000, 42, 5, (7, 8), (TABLE,))
GOOD = v1.encode(BATCH)


def fields_of(message: bytes = GOOD) -> dict[str, Any]:
    return msgpack.unpackb(message)  # type: ignore[no-any-return]


def changed(**entries: Any) -> bytes:
    """A good message with some entries of its map replaced."""
    return msgpack.packb({**fields_of(), **entries})  # type: ignore[no-any-return]


def with_table(**parts: Any) -> bytes:
    """A good message with some parts of its table replaced."""
    names = ("digest", "description", "time", "rows")
    table = dict(zip(names, fields_of()["tables"][0]))
    assert parts.keys() <= table.keys()
    return changed(tables=[list({**table, **parts}.values())])


def with_text(text: bytes) -> bytes:
    """A good message whose table has this description and its true digest."""
    return with_table(digest=hashlib.blake2b(text, digest_size=16).digest(), description=zlib.compress(text), rows=b"")


def assert_same(one: Batch, other: Batch) -> None:
    """Equal in everything; rows by their bytes, since NaN is not itself."""
    assert one[:5] == other[:5]
    assert [(t.schema, t.time_ns, t.rows.tobytes()) for t in one.tables] == [
        (t.schema, t.time_ns, t.rows.tobytes()) for t in other.tables
    ]


def node_batch(seed: int = 1) -> Batch:
    """What a node with two jobs sends a tick: procstats and two rows of taskstats, with large counters."""
    rng = random.Random(seed)

    def table(name: str, jobs: tuple[int, ...]) -> Table:
        record = colmet06.RECORDS[name]
        limits = {"u8": 2**40, "u4": 2**32, "f4": 2**10}
        samples = [Sample(job, {n: rng.randrange(limits[wire]) for n, wire, _ in record.counters}) for job in jobs]
        return Table.from_samples(record.schema, 1_700_000_000 * 10**9, samples)

    tables = (table("procstats_default", (0,)), table("taskstats_default", (4242, 4243)))
    return Batch("node-17.example.org", 1_700_000_000, 1000 + seed, tables[0].time_ns, (4242, 4243), tables)


# Round trip

NAMES = st.builds(
    str.__add__,
    st.sampled_from(string.ascii_letters),
    st.text(string.ascii_letters + string.digits + "_.-", max_size=127),
).filter(lambda name: name not in RESERVED)
DTYPES = st.sampled_from(["i8", "f4", "f8"]) | st.integers(1, 300).map("S{}".format)
FIELDS = st.builds(
    Field,
    NAMES,
    st.sampled_from(sorted(UNITS)),
    st.sampled_from(sorted(KINDS)),
    st.just(""),
    DTYPES,
    st.sampled_from(sorted(FOLDS)),
)
SCHEMAS = st.builds(
    Schema,
    NAMES,
    st.sampled_from(["job", "node"]),
    st.lists(FIELDS, min_size=1, max_size=8, unique_by=lambda f: f.name),
)
IDS = st.integers(0, 2**63 - 1)
HOSTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}", fullmatch=True)


@st.composite
def tables_of_any_bytes(draw: st.DrawFn) -> Table:
    schema = draw(SCHEMAS)
    size = schema.dtype.itemsize
    jobs = draw(st.lists(IDS, max_size=4))
    data = draw(st.randoms(use_true_random=False)).getrandbits(8 * size * len(jobs) + 1)
    rows = np.frombuffer(bytearray(data.to_bytes(size * len(jobs) + 1, "little")), schema.dtype, len(jobs))
    rows["job_id"] = jobs
    return Table(schema, draw(IDS), rows)


@given(
    st.builds(
        Batch,
        HOSTS,
        IDS,
        IDS,
        IDS,
        st.none() | st.lists(IDS).map(tuple),
        st.lists(tables_of_any_bytes(), max_size=5).map(tuple),
    )
)
def test_a_batch_is_the_same_after_its_way_over_the_wire(batch: Batch) -> None:
    decoded = Decoder().decode(v1.encode(batch))
    assert (decoded.dialect, decoded.skipped, len(decoded.batches)) == ("v1", 0, 1)
    assert_same(decoded.batches[0], batch)


def test_a_missing_value_stays_missing() -> None:
    (batch,) = Decoder().decode(GOOD).batches
    assert list(batch.tables[0].samples()) == [
        Sample(7, {"reads": 3, "load": None}),
        Sample(8, {"reads": None, "load": 0.5}),
    ]


def test_a_table_has_the_time_of_its_batch_or_its_own() -> None:
    batch = BATCH._replace(tables=(TABLE, Table(TABLE.schema, 4, TABLE.rows)))
    assert [parts[2] for parts in fields_of(v1.encode(batch))["tables"]] == [None, 4]
    assert [table.time_ns for table in Decoder().decode(v1.encode(batch)).batches[0].tables] == [5, 4]


def test_unknown_jobs_and_no_jobs_are_distinguished() -> None:
    for jobs in (None, ()):
        assert Decoder().decode(v1.encode(BATCH._replace(jobs=jobs))).batches[0].jobs == jobs


def test_no_tables_and_a_table_without_rows_are_allowed() -> None:
    assert_same(Decoder().decode(v1.encode(BATCH._replace(tables=()))).batches[0], BATCH._replace(tables=()))
    empty = BATCH._replace(tables=(Table(SCHEMA, 5, SCHEMA.empty_rows(0)),))
    assert_same(Decoder().decode(v1.encode(empty)).batches[0], empty)


def test_keys_of_newer_nodes_are_ignored_wherever_they_stand() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    extra = {"load": 5, "ext": msgpack.ExtType(5, b"x"), "when": msgpack.Timestamp(5), "deep": deep, "map": {"v": 2}}
    fields = fields_of()
    assert_same(Decoder().decode(msgpack.packb({**fields, **extra})).batches[0], BATCH)
    first = {"v": fields.pop("v")}
    assert_same(Decoder().decode(msgpack.packb({**first, **extra, **fields})).batches[0], BATCH)


def test_a_batch_that_was_never_numbered_cannot_be_sent() -> None:
    for batch in (BATCH._replace(epoch=None), BATCH._replace(seq=None)):
        with pytest.raises(ValueError, match="cannot be sent"):
            v1.encode(batch)


def test_a_node_with_two_jobs_sends_at_most_2100_bytes() -> None:
    for seed in range(20):
        batch = node_batch(seed)
        assert batch.row_count == 3
        assert len(v1.encode(batch)) <= 2_100
    assert len(colmet06.encode(batch)) == 10_726


# Descriptions


def test_a_description_is_parsed_once() -> None:
    decoder = Decoder()
    decoder.decode(GOOD)
    again = decoder.decode(with_table(description=b"no longer read")).batches[0]
    assert_same(again, BATCH)
    assert again.tables[0].schema is decoder.decode(GOOD).batches[0].tables[0].schema
    with pytest.raises(WireError, match="description"):
        Decoder().decode(with_table(description=b"no longer read"))


@pytest.mark.parametrize("digest", [bytes(16), SCHEMA.digest[:15], SCHEMA.digest + b"\0", b""])
def test_a_description_under_another_digest_is_refused(digest: bytes) -> None:
    cache = v1.SchemaCache()
    with pytest.raises(WireError, match="not the one that its digest names"):
        v1.decode(with_table(digest=digest), cache)
    assert len(cache) == 0


def test_a_reader_keeps_a_bounded_number_of_schemas_and_the_recent_ones() -> None:
    cache = v1.SchemaCache()
    schemas = [Schema(f"t{n}", "job", [Field("x", "count", "counter")]) for n in range(v1.MAX_SCHEMAS + 10)]
    for schema in schemas:
        cache.get(schema.digest, zlib.compress(schema.text.encode(), 1))
        cache.get(schemas[0].digest, b"")  # in use, so it stays
    assert len(cache) == v1.MAX_SCHEMAS
    assert cache.get(schemas[-1].digest, b"") == schemas[-1]
    with pytest.raises(WireError):
        cache.get(schemas[1].digest, b"")


def test_a_reader_keeps_a_bounded_number_of_fields() -> None:
    cache = v1.SchemaCache()
    fields = [Field(f"x{n}", "count", "counter") for n in range(1024)]
    for n in range(v1.MAX_SCHEMA_FIELDS // 1024 + 5):
        schema = Schema(f"t{n}", "job", fields)
        cache.get(schema.digest, zlib.compress(schema.text.encode(), 1))
    assert len(cache) == v1.MAX_SCHEMA_FIELDS // 1024


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"demo job\nx count counter i8 sum\nx count counter i8 sum", "one twice"),
        (b"demo job\njob_id count counter i8 sum", "not a field name"),
        (b"demo job\ninvolved_jobs none label S9 first", "not a field name"),
        (b"demo job\n__class__ count counter i8 sum", "not a field name"),
        (b"demo job\nx count counter O sum", "not a field type"),
        (b"demo job\nx parsec counter i8 sum", "unit"),
        (b"../demo job\nx count counter i8 sum", "not a table name"),
        (b"demo site\nx count counter i8 sum", "not a scope"),
        (b"demo job", "no fields"),
        (b"demo job\nx count counter", "unpack"),
        (b"demo job\n\xe9 count counter i8 sum", "ascii"),
        (b"demo job\n" + b"x count counter i8 sum\n" * 1030, "more than 1024 fields"),
        (b"", "unpack"),
    ],
)
def test_a_description_that_is_not_allowed_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Decoder().decode(with_text(text))


@pytest.mark.parametrize("description", [b"", b"x", zlib.compress(SCHEMA.text.encode())[:-1], None, "text", 5, True])
def test_a_damaged_description_is_refused(description: Any) -> None:
    with pytest.raises(WireError, match="description"):
        Decoder().decode(with_table(description=description))


@pytest.mark.parametrize("description", [None, "text", 5, [], {}])
def test_a_description_is_bytes_where_the_digest_is_known_too(description: Any) -> None:
    decoder = Decoder()
    decoder.decode(GOOD)
    with pytest.raises(WireError, match="not a byte string"):
        decoder.decode(with_table(description=description))
    assert decoder.decode(with_table(description=b"not looked at")).batches


@pytest.mark.slow
def test_a_description_that_inflates_a_thousandfold_is_refused_in_bounded_memory() -> None:
    squeeze = zlib.compressobj(9)
    first, second = [squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
    bomb = first + 1023 * second  # behind a full flush, equal data is equally compressed
    assert len(bomb) < 2 << 20
    message = with_table(digest=bytes(16), description=bomb)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="too long"):
            Decoder().decode(message)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# Damage, each kind with its reason


def test_another_version_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(WireError, match="wire version 2; this collector reads version 1: update it"):
        Decoder().decode(changed(v=2, tables="something else altogether"))


@pytest.mark.parametrize("key", sorted(v1.KEYS))
def test_a_missing_key_is_named(key: str) -> None:
    fields = fields_of()
    del fields[key]
    with pytest.raises(WireError, match=f"lacks {key}$"):
        Decoder().decode(msgpack.packb(fields))


NOT_COUNTS = [-1, -(2**63), 2**63, 2**64 - 1, True, False, 1.0, float("nan"), float("inf"), "1", b"1"]
NOT_SCALARS: list[Any] = [[], {}, [1], {"a": 1}, msgpack.ExtType(1, b"x"), msgpack.Timestamp(1)]


BAD_VALUES = {
    "v": [0, -1, True, 1.0, "1", b"1", None, float("nan"), 2**64 - 1],
    **{key: [*NOT_COUNTS, *NOT_SCALARS, None] for key in ("epoch", "seq", "time")},
    "host": ["", "a b", "a/b", "-a", "a\n", "\u00e9", "x" * 256, b"node", 5, None, True, *NOT_SCALARS],
    "jobs": [5, "ab", b"ab", {}, True, *[[7, bad] for bad in [*NOT_COUNTS, *NOT_SCALARS, None]]],
    "tables": [None, 5, "ab", b"ab", {}, [5], [None], [[]], [[b"", b"", None]], [[b""] * 5], [{}], ["abcd"]],
}
BAD_PARTS = {
    "time": [*NOT_COUNTS, *NOT_SCALARS],
    "digest": [None, "x" * 16, 5, True, *NOT_SCALARS],
    "rows": [b"x", TABLE.rows.tobytes()[:-1], TABLE.rows.tobytes() + b"x", "x" * 48, None, 0, *NOT_SCALARS],
}


@pytest.mark.parametrize(("change", "bad"), [(changed, BAD_VALUES), (with_table, BAD_PARTS)])
def test_what_is_to_be_a_count_a_name_a_list_or_bytes_is_one(change: Any, bad: dict[str, list[Any]]) -> None:
    for key, values in bad.items():
        for value in values:
            with pytest.raises(WireError):
                Decoder().decode(change(**{key: value}))


@pytest.mark.parametrize("job", [-1, -(2**63)])
def test_a_negative_job_id_in_a_row_is_refused(job: int) -> None:
    rows = TABLE.rows.copy()
    rows["job_id"][1] = job
    with pytest.raises(WireError, match="negative"):
        Decoder().decode(with_table(rows=rows.tobytes()))


def test_too_many_tables_jobs_or_keys_are_refused() -> None:
    table = fields_of()["tables"][0]
    assert len(Decoder().decode(changed(tables=[table] * v1.MAX_TABLES)).batches[0].tables) == v1.MAX_TABLES
    with pytest.raises(WireError, match="257 tables, more than the 256"):
        Decoder().decode(changed(tables=[table] * (v1.MAX_TABLES + 1)))
    with pytest.raises(WireError, match="4097 jobs, more than the 4096"):
        Decoder().decode(changed(jobs=[1] * (MAX_JOBS + 1)))
    with pytest.raises(WireError, match="65 keys, more than the 64"):
        Decoder().decode(changed(**{f"k{n}": 0 for n in range(v1.MAX_KEYS - len(v1.KEYS) + 1)}))


def test_a_key_twice_is_refused() -> None:
    twice = b"\x88" + GOOD[1:] + msgpack.packb("host") + msgpack.packb("other")
    with pytest.raises(WireError, match="'host' twice"):
        Decoder().decode(twice)


@pytest.mark.parametrize("key", [1, None, b"key", 1.5, True])
def test_a_key_that_is_not_text_is_refused(key: Any) -> None:
    with pytest.raises(WireError, match="not a key"):
        Decoder().decode(msgpack.packb({**fields_of(), key: 1}))


def test_every_truncation_and_an_extension_are_refused() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(WireError):
            Decoder().decode(GOOD[:size])
    with pytest.raises(WireError, match="bytes after the map"):
        Decoder().decode(GOOD + b"\0")


def test_a_message_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(WireError, match=f"{MAX_MESSAGE_BYTES + 1} bytes, more than the {MAX_MESSAGE_BYTES}"):
        Decoder().decode(GOOD.ljust(MAX_MESSAGE_BYTES + 1, b"\0"))


# Dialects


@pytest.mark.parametrize("size", [1, 15, 16, 65536])
def test_a_map_with_text_keys_is_v1_and_with_other_keys_the_rust_nodes(size: int) -> None:
    assert dialect_of(msgpack.packb({f"k{n}": 0 for n in range(size)})) == "v1"
    assert dialect_of(msgpack.packb({"k" * 40 + str(n): 0 for n in range(size)})) == "v1"  # str8
    assert dialect_of(msgpack.packb(dict.fromkeys(range(size), 0))) == "colmet_rs"
    assert dialect_of(msgpack.packb({n + 2**40: 0 for n in range(size)})) == "colmet_rs"


def test_a_letter_starts_a_message_of_06() -> None:
    for letter in string.ascii_letters:
        assert dialect_of(letter.encode()) == "colmet06"
    assert {dialect_of(name.encode()) for name in colmet06.RECORDS} == {"colmet06"}


@pytest.mark.parametrize("message", [b"\x80", b"\x81", b"\xde\0\0", b"\xde", b"\xdf\0\0\0\0", b"\xdf\0"])
def test_a_map_without_entries_is_the_rust_nodes(message: bytes) -> None:
    assert dialect_of(message) == "colmet_rs"


def test_every_other_first_byte_is_refused() -> None:
    others = [n for n in range(256) if not (0x41 <= n <= 0x7A or 0x80 <= n <= 0x8F or n in (0xDE, 0xDF))]
    assert len(others) == 180
    for first in others:
        with pytest.raises(WireError, match="no dialect"):
            dialect_of(bytes([first]) + GOOD)
    with pytest.raises(WireError, match="no dialect"):
        dialect_of(b"")


def test_one_decoder_reads_the_three_dialects_interleaved() -> None:
    old = (HERE / "data" / "colmet06" / "frames" / "mixed.bin").read_bytes()
    rust = (HERE / "data" / "colmet_rs" / "rust-v1.bin").read_bytes()
    messages = {"v1": v1.encode(node_batch()), "colmet06": old, "colmet_rs": rust}
    decoder = Decoder()
    found = [decoder.decode(messages[name]) for _ in range(5) for name in messages]
    assert [decoded.dialect for decoded in found] == list(messages) * 5
    assert [sum(batch.row_count for batch in decoded.batches) for decoded in found] == [3, 7, 4] * 5


# The documentation


def test_the_example_in_the_documentation_decodes_to_what_it_says() -> None:
    text = (HERE.parent / "docs" / "wire.md").read_text()
    dump = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", text, re.MULTILINE)
    message = bytes.fromhex("".join(dump))
    said = re.search(r"```text\n(demo_default .*?)\n```", text, re.DOTALL)
    assert said and f"the {len(message)} bytes" in text
    (batch,) = Decoder().decode(message).batches
    assert batch[:5] == ("node-1", 1_700_000_000, 42, 1_700_000_005_000_000_000, (7,))
    (table,) = batch.tables
    assert table.schema.text == said[1] and table.schema.digest.hex() in text
    assert list(table.samples()) == [Sample(7, {"cpu_time": 1000, "load": None})]
    assert_same(Decoder().decode(v1.encode(batch)).batches[0], batch)


# The short form

SHORT = v1.encode(BATCH, is_short=True)


def test_a_message_in_the_short_form_is_read_by_who_has_read_a_full_one() -> None:
    decoder = Decoder()
    with pytest.raises(Undescribed, match=SCHEMA.digest[:8].hex()) as caught:
        decoder.decode(SHORT)
    assert (caught.value.host, caught.value.epoch) == (BATCH.host, BATCH.epoch)
    full = decoder.decode(GOOD)
    short = decoder.decode(SHORT)
    assert_same(short.batches[0], BATCH)
    assert short.checksum == full.checksum == decoder.heads(SHORT).checksum == decoder.heads(GOOD).checksum


def test_a_description_is_learnt_by_its_text() -> None:
    decoder = Decoder()
    for _ in range(2):
        decoder.learn(SCHEMA.text.encode())
    assert_same(decoder.decode(SHORT).batches[0], BATCH)
    for text in (b"", b"demo", b"\xff", SCHEMA.text.encode() + b"\n"):
        with pytest.raises(WireError):
            decoder.learn(text)


def test_the_full_form_of_a_short_message_is_what_encode_makes_of_the_batch() -> None:
    assert v1.describe(SHORT, [SCHEMA]) == v1.describe(GOOD, []) == GOOD
    with pytest.raises(KeyError):
        v1.describe(SHORT, [])


def test_the_checksum_is_of_the_content() -> None:
    checksum = Decoder().decode(GOOD).checksum
    decoder = Decoder()
    decoder.decode(GOOD)
    assert decoder.heads(SHORT).checksum == checksum
    row = Table(SCHEMA, 5, TABLE.rows[:1])
    others = [
        BATCH._replace(time_ns=6),
        BATCH._replace(jobs=(7,)),
        BATCH._replace(jobs=None),
        BATCH._replace(tables=()),
        BATCH._replace(tables=(row,)),
        BATCH._replace(tables=(Table(SCHEMA, 4, TABLE.rows),)),
    ]
    assert checksum not in [decoder.decode(v1.encode(other)).checksum for other in others]
    for odd in (["d", None, None, b""], [b"d", None, None, "rows"], [b"d", b"", None, 5], [b"d", b"", math.inf, b""]):
        with pytest.raises(WireError):
            Decoder().heads(changed(tables=[odd]))


def test_a_reader_has_all_that_counts_as_described_however_many_schemas_there_are() -> None:
    rng = random.Random(5)
    schemas = [
        Schema(f"t{n}", "job", [Field(f"f{m}", "count", "gauge") for m in range(rng.choice([1, 3, 100]))])
        for n in range(1500)
    ]
    described, decoder = v1.Described(), Decoder()
    count = 0
    for n in range(4000):
        some = rng.sample(schemas[: 40 if n % 100 else None], rng.randrange(1, 5))
        sent = BATCH._replace(tables=tuple([Table(schema, 5, b"") for schema in some]))
        for schema in described.new([sent]):
            decoder.learn(schema.text.encode())
            count += 1
        assert decoder.decode(v1.encode(sent, is_short=True)).batches == (sent,) or sent.tables
    assert count < 1000
    described.clear()
    assert described.new([BATCH, BATCH]) == [SCHEMA]
