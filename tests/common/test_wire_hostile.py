"""Whatever arrives on the port, a decoder answers with Decoded or WireError, in bounded memory, and goes on."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colmet.common.errors import WireError
from colmet.common.wire import MAX_MESSAGE_BYTES, Decoded, Decoder, v1
from tests.support.damaged_messages import GOOD, damaged

MIB = 1 << 20


def survives(decoder: Decoder, message: bytes) -> Decoded | None:
    """What the decoder answers; any exception but WireError fails the test."""
    try:
        decoded = decoder.decode(message)
    except WireError:
        return None
    assert type(decoded) is Decoded
    for batch in decoded.batches:  # what is accepted can be worked with
        for table in batch.tables:
            assert table.rows.dtype == table.schema.dtype
            assert len(table.rows) == 0 or min(table.rows["job_id"].tolist()) >= 0
    return decoded


@pytest.mark.slow
@pytest.mark.parametrize("dialect", GOOD)
def test_ten_thousand_bad_messages_stop_nothing(dialect: str) -> None:
    rng = random.Random(f"colmet {dialect}")
    good = min(GOOD[dialect], key=len)
    refused = 0
    for n in range(10_000):
        if n % 20 == 0:
            decoder = Decoder()  # one that knows no schema reads the descriptions
        refused += survives(decoder, damaged(rng, dialect)) is None
        if n % 10 < 2:
            decoded = decoder.decode(good)
            assert (decoded.dialect, len(decoded.batches)) == (dialect, 1)
    assert refused > 5_000


@pytest.mark.parametrize("dialect", GOOD)
def test_every_flipped_bit_near_the_start_and_every_cut_are_survived(dialect: str) -> None:
    good = min(GOOD[dialect], key=len)
    for bit in range(8 * min(len(good), 120)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        survives(Decoder(), bytes(flipped))
    for size in range(len(good)):
        assert survives(Decoder(), good[:size]) is None


# Properties

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(st.binary(max_size=2000))
def test_any_bytes_are_survived(message: bytes) -> None:
    survives(Decoder(), message)


@many
@given(st.sampled_from(sorted(GOOD)), st.binary(max_size=200), st.integers(0, 600))
def test_any_bytes_after_a_good_start_are_survived(dialect: str, tail: bytes, start: int) -> None:
    survives(Decoder(), GOOD[dialect][0][:start] + tail)


# What a decoder must not be made to spend


def declare(code: int, length: int) -> bytes:
    """The header of a msgpack value with a length of 32 bits."""
    return struct.pack(">BI", code, length)


ARRAY, MAP, STR, BIN, EXT = 0xDD, 0xDF, 0xDB, 0xC6, 0xC9
V1_AT = {
    "version": b"\x81\xa1v",
    "unknown key": b"\x82\xa1v\x01\xa1z",
    "host": b"\x82\xa1v\x01\xa4host",
    "jobs": b"\x82\xa1v\x01\xa4jobs",
    "a job": b"\x82\xa1v\x01\xa4jobs\x91",
    "tables": b"\x82\xa1v\x01\xa6tables",
    "a table": b"\x82\xa1v\x01\xa6tables\x91",
    "a digest": b"\x82\xa1v\x01\xa6tables\x91\x94",
    "rows": b"\x82\xa1v\x01\xa6tables\x91\x94\xc0\xc0\xc0",
}
RUST_AT = {
    "entry": b"\x81\x07",
    "host": b"\x81\x07\x94",
    "ms": b"\x81\x07\x94\xa1h",
    "table version": b"\x81\x07\x94\xa1h\x05",
    "backends": b"\x81\x07\x94\xa1h\x05\x01",
    "backend": b"\x81\x07\x94\xa1h\x05\x01\x91",
    "inner job": b"\x81\x07\x94\xa1h\x05\x01\x91\x94",
    "ids": b"\x81\x07\x94\xa1h\x05\x01\x91\x94\x07\xa3cpu",
    "an id": b"\x81\x07\x94\xa1h\x05\x01\x91\x94\x07\xa3cpu\x91",
    "unknown backend": b"\x81\x07\x94\xa1h\x05\x01\x91\x94\x07\xa3gpu",
    "values": b"\x81\x07\x94\xa1h\x05\x01\x91\x94\x07\xa3cpu\x90",
}
AT = [
    pytest.param(start, id=f"{name} of {d}")
    for d, at in (("v1", V1_AT), ("rust", RUST_AT))
    for name, start in at.items()
]


def spent(message: bytes) -> tuple[int, float]:
    """Peak bytes and CPU seconds that a message costs, itself not included; it is to be refused."""
    tracemalloc.start()
    start = time.process_time()
    try:
        assert survives(Decoder(), message) is None
        return tracemalloc.get_traced_memory()[1], time.process_time() - start
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("start", AT)
def test_a_huge_declared_length_allocates_nothing(start: bytes) -> None:
    for code in (ARRAY, MAP, STR, BIN, EXT):
        for length in (2**32 - 1, 2**31, 2**24, MAX_MESSAGE_BYTES - 100):
            message = start + declare(code, length)
            assert spent(message)[0] < MIB
            assert spent(message.ljust(10_000, b"\x90"))[0] < 2 * MIB


@pytest.mark.parametrize("start", AT)
def test_nesting_overflows_no_stack(start: bytes) -> None:
    for level in (b"\x91", b"\x81\x01", b"\x81\xa1a", b"\xdc\0\1"):
        for depth in (100, 500, 970, 1000, 1020, 5000, 100_000):
            assert spent(start + level * depth + b"\x01")[0] < 4 * MIB


@pytest.mark.parametrize("start", AT)
def test_a_full_message_of_empty_lists_or_of_declarations_costs_a_few_times_its_size(start: bytes) -> None:
    size = MAX_MESSAGE_BYTES - len(start)
    for filler in (
        declare(ARRAY, size - 5) + b"\x90" * (size - 5),
        declare(ARRAY, 7 << 20) * (size // 5),
        declare(ARRAY, 65536) * (size // 5),
    ):
        memory, seconds = spent(start + filler)
        assert memory < 32 * MIB
        assert seconds < 5


@pytest.mark.slow
def test_a_flood_of_backends_costs_a_few_times_its_size() -> None:
    count = 50_000  # of 7 bytes, all of one job
    message = RUST_AT["backends"] + declare(ARRAY, count) + b"\x93\xa3cpu\x91\x24\x91\x01" * count
    tracemalloc.start()
    try:
        (batch,) = Decoder().decode(message).batches
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert batch.row_count == 1


@pytest.mark.slow
def test_a_full_message_of_records_of_06_costs_a_few_times_its_size() -> None:
    record = GOOD["colmet06"][1]
    message = record * (MAX_MESSAGE_BYTES // len(record))
    tracemalloc.start()
    try:
        (batch,) = Decoder().decode(message).batches
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()
    assert batch.row_count == MAX_MESSAGE_BYTES // len(record)


def test_invalid_utf8_a_surrogate_and_a_broken_timestamp_are_refused() -> None:
    for value in (b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80", b"\xd6\xff\0\0\0\0", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xc1"):
        for start in (V1_AT["host"], V1_AT["version"], RUST_AT["host"], RUST_AT["ms"]):
            assert survives(Decoder(), start + value) is None
    assert survives(Decoder(), b"\x81\xa2\xff\xfe\x01") is None


def outcome(read, *arguments):
    """What a reader makes of a message: a comparable value, or that it was refused."""
    try:
        batch, checksum = read(*arguments)
    except WireError:
        return "refused"
    tables = [(table.schema, table.time_ns, table.rows.tobytes()) for table in batch.tables]
    return (*batch[:5], tables, checksum)


@pytest.mark.slow
def test_the_fast_reader_of_small_messages_accepts_and_refuses_what_the_careful_one_does(monkeypatch):
    """10,000 flipped, cut and spliced messages: with and without the fast way, the outcome is the same."""
    rng = random.Random(7)
    good = GOOD["v1"][0]
    fields = msgpack.unpackb(good)
    taken = 0
    knowing, also_knowing = v1.SchemaCache(), v1.SchemaCache()
    for schemas in (knowing, also_knowing):
        v1.decode(good, schemas)
    for _ in range(10_000):
        if rng.random() < 0.5:
            flipped = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            message = bytes(flipped)
        else:
            changed = dict(fields)
            key = rng.choice(sorted(changed))
            odd = [None, True, -1, 1 << 63, 1.0, "x", b"x", [], [[]], {}, {"a": 1}, [1, 2], [True], [[1, 2, 3, 4]]]
            odd.append([[*fields["tables"][0][:3], rng.choice(odd)]])
            odd.append([[fields["tables"][0][0][: v1.SHORT_BYTES], *fields["tables"][0][2:]]])
            odd.append([[rng.choice(odd), *fields["tables"][0][2:]]])
            odd.append([[*fields["tables"][0][:2], rng.choice(odd[:-1]), fields["tables"][0][3]]])
            changed[key] = rng.choice(odd)
            message = msgpack.packb(changed)
        fast = outcome(v1.decode, message, knowing)
        with monkeypatch.context() as patched:
            patched.setattr(v1, "MAX_SMALL_BYTES", 0)
            careful = outcome(v1.decode, message, also_knowing)
        assert fast == careful, message
        taken += fast != "refused"
    assert 500 < taken < 9500, "both kinds were among them"
