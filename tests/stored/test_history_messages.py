"""Messages between the process that reads HDF5 files and its parent."""

from __future__ import annotations

import io
import json
from typing import NamedTuple

import numpy as np
import pytest

from colmet.stored import messages


class Pair(NamedTuple):
    left: object
    right: object


def sent(value):
    file = io.BytesIO()
    messages.send(file, value)
    file.seek(0)
    return file


def raw(plain, rest=b""):
    text = json.dumps(plain).encode()
    return io.BytesIO(len(text).to_bytes(8, "little") + text + rest)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -(1 << 63), 1.5, "é\n", b"\x00\xff", [], [1, [b"x"]], {}, {1: b"a", "b": None}),
        *(frozenset({"a", b"a"}), (), (1, (2,)), Pair({"k": frozenset({(0, "t")})}, [Pair(1, 2)])),
    ],
)
def test_what_was_sent_is_received(value):
    found = messages.receive(sent(value), {"Pair": Pair})
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", ["i1", "<i8", ">u4", "f4", "f8", "S7"])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_arrays_come_as_they_were(dtype, length):
    array = np.arange(2 * length).astype(dtype)[::2]
    found, after = messages.receive(sent([array, "after"]), {})
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()
    assert after == "after"
    found.sort()  # may be written to


def test_not_a_number_stays_what_it_is():
    assert np.isnan(messages.receive(sent(float("nan")), {}))


@pytest.mark.parametrize("value", [object(), print, 1j, np.array([object()]), np.zeros((2, 2)), bytearray(b"x")])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(TypeError):
        sent(value)


@pytest.mark.parametrize(
    "plain",
    [
        *({"array": ["O", 1]}, {"array": ["i8", -1]}, {"array": ["(2,2)i8", 1]}, {"array": ["i8"]}),
        *({"array": [",".join(["i8"] * 3), 1]}, {"array": ["M8[s]", 1]}, {"array": ["no such type", 1]}),
        *({}, {"bytes": 1}, {"bytes": "€"}, {"Pair": [1]}, {"Other": [1, 2]}, {"dict": [[1]]}),
        *({"set": [[]]}, {"dict": [[[], 1]]}, {"bytes": "", "set": []}, {"array": [None, 1 << 62]}),
    ],
)
def test_what_is_no_message_is_refused(plain):
    with pytest.raises((ValueError, EOFError, MemoryError)):
        messages.receive(raw(plain, bytes(64)), {"Pair": Pair})


@pytest.mark.parametrize("content", [b"", b"\x01", (5).to_bytes(8, "little") + b"[1", (1 << 40).to_bytes(8, "little")])
def test_what_is_cut_off_is_an_error(content):
    with pytest.raises((EOFError, ValueError)):
        messages.receive(io.BytesIO(content), {})


def test_an_array_that_is_cut_off_is_an_error():
    with pytest.raises(EOFError):
        messages.receive(raw({"array": ["i8", 2]}, bytes(15)), {})


def test_deep_nesting_is_refused():
    text = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(ValueError, match="not a message"):
        messages.receive(io.BytesIO(len(text).to_bytes(8, "little") + text), {})
