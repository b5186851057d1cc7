"""Limits on values common to all dialects: host names, whole numbers, counts, and containers of msgpack.

Each check returns its valid value, or raises WireError.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgpack

from colmet.common.errors import WireError

# Host names are used in file columns and log lines: no control characters, no separators.
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}", re.ASCII)
MAX_JOBS = 4096  # on one node at a time
# msgpack without its C extension applies this to headers and skipped values too; its lists grow as they fill.
_CONTAINER = 1 << 20 if msgpack.Unpacker.__module__ == "msgpack.fallback" else 0


def shown(value: Any) -> str:
    """Return a value for an error message: the start of a scalar's repr; of containers, maybe too deep, the type."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict, tuple)) else f"{value!r:.80}"


def checked_int(value: Any, what: str) -> int:
    """Return a whole number from 0 to 2^63 - 1; WireError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise WireError(f"{what} is {shown(value)}, not a whole number from 0 to 2^63 - 1")
    return value


def at_most(limit: int, count: int, what: str) -> int:
    """Return a count declared in a message; WireError beyond the limit."""
    if count > limit:
        raise WireError(f"{count} {what}, more than the {limit} that a message may have")
    return count


@lru_cache(maxsize=16384)
def _known_host(value: str) -> str | None:
    """Return a valid host name, as one string for all messages of the host; None for an invalid one."""
    return value if HOST.fullmatch(value) else None


def checked_host(value: Any) -> str:
    """Return a host name; WireError for anything else."""
    host = _known_host(value) if type(value) is str else None
    if host is None:
        raise WireError(f"{shown(value)} is not a host name")
    return host


def scalars(message: bytes) -> Any:
    """Return a msgpack.Unpacker whose unpack() returns scalars and refuses lists, maps and extension types.

    Containers are read by their header and then value by value: neither a declared length, nor nesting, nor millions of
    empty lists cost memory or stack before they are checked.
    """
    unpacker = msgpack.Unpacker(
        max_array_len=_CONTAINER, max_map_len=_CONTAINER, max_ext_len=_CONTAINER, max_buffer_size=len(message)
    )
    unpacker.feed(message)
    return unpacker
