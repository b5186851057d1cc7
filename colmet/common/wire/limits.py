"""What every dialect demands of the values it carries."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgpack

from colmet.common.errors import WireError

# Host names end up in file columns and in log lines: no control characters, no separators. The collector alone adds ~2
# and so on: to the names of agents that share one (`common.namesakes`).
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}(?:~[2-9])?", re.ASCII)
MAX_JOBS = 4096  # on one node at a time
# msgpack without its C extension applies this to headers and to what is skipped too; its lists grow as they fill.
_CONTAINER = 1 << 20 if msgpack.Unpacker.__module__ == "msgpack.fallback" else 0


def shown(value: Any) -> str:
    """A value for an error message: the start of a scalar's repr. That of lists in lists could be too deep to make."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict, tuple)) else f"{value!r:.80}"


def checked_int(value: Any, what: str) -> int:
    """A whole number from 0 to 2^63 - 1, or WireError."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise WireError(f"{what} is {shown(value)}, not a whole number from 0 to 2^63 - 1")
    return value


def at_most(limit: int, count: int, what: str) -> int:
    """A count that a message declares, or WireError beyond the limit."""
    if count > limit:
        raise WireError(f"{count} {what}, more than the {limit} that a message may have")
    return count


@lru_cache(maxsize=16384)
def _known_host(value: str) -> str | None:
    """One string for all messages of a host; None where it is not a host name."""
    return value if HOST.fullmatch(value) else None


def checked_host(value: Any) -> str:
    """A host name, or WireError."""
    host = _known_host(value) if type(value) is str else None
    if host is None:
        raise WireError(f"{shown(value)} is not a host name")
    return host


def scalars(message: bytes) -> Any:
    """A msgpack.Unpacker of `message` whose unpack() gives scalars and refuses lists, maps and extension types.

    What holds others is read by its header and then value by value: neither a declared length, nor nesting, nor
    millions of empty lists cost memory or stack before they are checked.
    """
    unpacker = msgpack.Unpacker(
        max_array_len=_CONTAINER, max_map_len=_CONTAINER, max_ext_len=_CONTAINER, max_buffer_size=len(message)
    )
    unpacker.feed(message)
    return unpacker
