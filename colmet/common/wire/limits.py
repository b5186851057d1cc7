"""What every dialect demands of the values it carries."""

from __future__ import annotations

import re
from typing import Any

from colmet.common.errors import WireError

# Host names end up in file columns and in log lines: no control characters, no separators.
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}", re.ASCII)
MAX_JOBS = 65536


def checked_int(value: Any, what: str) -> int:
    """A whole number from 0 to 2^63 - 1, or WireError."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise WireError(f"{what} is {value!r:.80}, not a whole number from 0 to 2^63 - 1")
    return value


def checked_host(value: Any) -> str:
    """A host name, or WireError."""
    if type(value) is not str or not HOST.fullmatch(value):
        raise WireError(f"{value!r:.80} is not a host name")
    return value
