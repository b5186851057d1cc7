"""Requests and answers between the process reading HDF5 files and its parent.

The format carries data and never code, so a damaged or hostile file in control of the reading process cannot run code
in its parent: a length (8 bytes, little endian), JSON of this length, then the bytes of all arrays. JSON lists are
lists; every other container is an object with one key, the name of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

MAX_JSON_BYTES = 1 << 30
OWN: Mapping[str, Any] = {"dict": dict, "tuple": tuple, "frozenset": frozenset}
KINDS = "iufS"  # of numpy's types: numbers and bytes, all plain memory

Tuples = Mapping[str, Any]


def send(file: IO[bytes], value: Any) -> None:
    """Write one value: None, numbers, text, bytes, one-dimensional arrays, and containers of these; flush the pipe.

    A named tuple keeps the name of its class, for `receive`. Raises TypeError for a part without a form here.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    text = json.dumps(_plain(value, arrays)).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        file.write(np.ascontiguousarray(array).data)
    file.flush()


def receive(file: IO[bytes], tuples: Tuples) -> Any:
    """Read a value written by `send`; `tuples` are the permitted classes, each called with the items of its tuple.

    Raises:
        EOFError: the other end is closed.
        ValueError: not the format of `send`.
    """
    size = int.from_bytes(_exactly(file, bytearray(8)), "little")
    if size > MAX_JSON_BYTES:
        raise ValueError(f"a message of {size} bytes")
    try:
        return _value(json.loads(_exactly(file, bytearray(size))), file, tuples)
    except (AttributeError, KeyError, TypeError, RecursionError) as err:
        raise ValueError(f"not a message: {err}") from err


def _plain(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in KINDS:
        arrays.append(value)
        return {"array": [value.dtype.str, len(value)]}
    if isinstance(value, dict):
        return {"dict": _plain([list(item) for item in value.items()], arrays)}
    if isinstance(value, (list, tuple, frozenset)):
        items = [_plain(item, arrays) for item in value]
        return items if isinstance(value, list) else {type(value).__name__: items}
    raise TypeError(f"{type(value).__name__} has no form in a message")


def _value(plain: Any, file: IO[bytes], tuples: Tuples) -> Any:
    if isinstance(plain, list):
        return [_value(item, file, tuples) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "bytes":
        return content.encode("latin-1")
    if kind == "array":
        name, length = content
        return _array(name, length, file)
    items = _value(content, file, tuples)
    return OWN[kind](items) if kind in OWN else tuples[kind](*items)


def _array(name: str, length: int, file: IO[bytes]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(name)
    if dtype.kind not in KINDS or dtype.shape:
        raise ValueError(f"an array of {name}")
    array = np.empty(length, dtype)
    if array.nbytes:
        _exactly(file, array.view("u1").data)
    return array


def _exactly(file: IO[bytes], buffer: Any) -> Any:
    view = memoryview(buffer)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    return buffer
