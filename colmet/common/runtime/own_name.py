"""Names of this machine in Host headers, against web pages that reach it under a name of their own."""

from __future__ import annotations

import socket
from collections.abc import Collection


def own_names() -> frozenset[str]:
    """Return the names of this machine for requests from itself."""
    name = socket.gethostname().lower()
    return frozenset({"localhost", name, name.partition(".")[0]})


def is_known(value: str, names: Collection[str]) -> bool:
    """Return whether a Host header has one of these names, or an address, with or without a port."""
    host = value.strip().lower()
    name, colon, port = host.rpartition(":")
    host = (name if colon and port.isdigit() else host).rstrip(".")
    if host in names:
        return True
    family = socket.AF_INET6 if host.startswith("[") and host.endswith("]") else socket.AF_INET
    try:
        socket.inet_pton(family, host.strip("[]"))
    except (OSError, ValueError):
        return False
    return True
