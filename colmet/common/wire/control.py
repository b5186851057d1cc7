"""Requests to a daemon and their replies, as one msgpack map with text keys each way: over the link, and the Rust port.

The control socket has the same maps in JSON.

A request is flat: its values are texts, numbers, booleans or nil. `command` names the action; a map without it is the
Rust node's request to change the configuration. A reply may hold lists and maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Union

import msgpack

from colmet.common.errors import WireError
from colmet.common.wire.limits import scalars, shown

MAX_REQUEST_BYTES = 64 << 10
MAX_ANSWER_BYTES = 16 << 20
MAX_KEYS = 64
MAX_KEY = 64  # characters
MAX_DEPTH = 8
MAX_ITEMS = 1 << 16  # of one list or map in a reply

Scalar = Union[str, int, float, bool, None]
Request = Mapping[str, Scalar]


def encode(values: Mapping[str, Any]) -> bytes:
    """Encode a request or a reply; the values are not checked."""
    packed: bytes = msgpack.packb(dict(values))
    return packed


def decode_request(message: bytes) -> dict[str, Scalar]:
    """Decode a request. Texts may be byte strings, as from older packers.

    Raises:
        WireError: for any defect; no other exception is raised.
    """
    if len(message) > MAX_REQUEST_BYTES:
        raise WireError(f"request: {len(message)} bytes, more than the {MAX_REQUEST_BYTES} that one may have")
    unpacker = scalars(message)
    pairs: list[tuple[Any, Any]] = []
    try:
        count = unpacker.read_map_header()
        if count > MAX_KEYS:
            raise WireError(f"request: {count} keys, more than the {MAX_KEYS} that one may have")
        pairs = [(unpacker.unpack(), unpacker.unpack()) for _ in range(count)]
    except WireError:
        raise
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, MemoryError, ...
        raise WireError(f"request: not a map of texts and numbers: {type(err).__name__}: {err}") from err
    if unpacker.tell() != len(message):
        raise WireError(f"request: {len(message) - unpacker.tell()} bytes behind its end")
    return check_request(pairs)


def check_request(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Scalar]:
    """Return the request with these keys and values.

    Raises:
        WireError: too many keys, one that is none or is there twice, or a value that is neither a text nor a number.
    """
    request: dict[str, Scalar] = {}
    for name, value in pairs:
        key = _text(name)
        if not isinstance(key, str) or len(key) > MAX_KEY or not key.isprintable():
            raise WireError(f"request: {shown(key)} is not a key")
        if key in request:
            raise WireError(f"request: {key} is there twice")
        if len(request) == MAX_KEYS:
            raise WireError(f"request: more than the {MAX_KEYS} keys that one may have")
        request[key] = _scalar(key, _text(value))
    return request


def decode_answer(message: bytes) -> dict[str, Any]:
    """Decode a reply; WireError for any defect, and no other exception."""
    if len(message) > MAX_ANSWER_BYTES:
        raise WireError(f"answer: {len(message)} bytes, more than the {MAX_ANSWER_BYTES} that one may have")
    try:
        answer = msgpack.unpackb(message, max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS, max_ext_len=0)
    except Exception as err:  # as above
        raise WireError(f"answer: not a map: {type(err).__name__}: {err}") from err
    if type(answer) is not dict or not _is_plain(answer, MAX_DEPTH):
        raise WireError("answer: not a map of texts, numbers, lists and maps")
    return answer


def _text(value: Any) -> Any:
    """Return the text of a byte string; anything else unchanged."""
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError as err:
            raise WireError(f"request: {shown(value)} is not UTF-8") from err
    return value


def _scalar(key: str, value: Any) -> Scalar:
    if type(value) is float and not math.isfinite(value):
        raise WireError(f"request: {key} is {value}, not a number")
    if value is None or type(value) in (str, int, float, bool):
        scalar: Scalar = value
        return scalar
    raise WireError(f"request: {key} is {shown(value)}, neither a text nor a number")


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a value consists of texts, numbers, lists and maps with text keys, and is not too deep."""
    if value is None or isinstance(value, (str, int, float)):
        return True
    if depth == 0:
        return False
    if type(value) is list:
        return all(_is_plain(item, depth - 1) for item in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item, depth - 1) for key, item in value.items())
    return False
