"""The time zone of this machine, by the name that browsers know it by."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = "zoneinfo/"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,32}){0,2}")


def local_zone(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """Return the name of this machine's time zone, such as Europe/Paris; None if unknown.

    Sources: the variable TZ, the link /etc/localtime, /etc/timezone; without any of them the C library uses UTC.
    """
    link = root / "etc/localtime"
    named = environment.get("TZ", "").removeprefix(":") if "TZ" in environment else None
    if named is None and not os.path.lexists(link):
        return "UTC"
    found = os.path.realpath(link) if named is None else named or "UTC"
    if _FOLDER in found:
        found = found.rpartition(_FOLDER)[2]
    elif named is None:
        try:
            found = (root / "etc/timezone").read_text("ascii").strip()
        except (OSError, UnicodeError):
            return None
    return found if _NAME.fullmatch(found) else None
