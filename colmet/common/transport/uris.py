"""Addresses of sockets, and the address of the link derived from that of the data."""

from __future__ import annotations

import re

from colmet.common.errors import ConfigError

_SOURCE = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^:/;\s\[\]]+):\d{1,5}", re.ASCII)
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^:/\s\[\]]+):(\d{1,5}|\*)", re.ASCII)


def check_uri(uri: str, option: str) -> str:
    """Return `uri` if ZeroMQ can use it; else ConfigError describes the form of a URI."""
    tcp = _TCP.fullmatch(uri)
    if tcp is not None:
        if tcp[2] == "*" or 0 < int(tcp[2]) < 65536:
            return uri
        raise ConfigError(f"{option} {uri}: the port must be a number from 1 to 65535")
    if re.fullmatch(r"ipc://.+", uri):
        return uri
    raise ConfigError(f"{option} {uri}: give tcp://HOST:PORT (or ipc://PATH), e.g. tcp://127.0.0.1:5556")


def check_target(uri: str, option: str) -> str:
    """Return `uri` if a socket can connect to it; an address to connect from may precede it: SOURCE:PORT;.

    Raises:
        ConfigError: describes the form of a URI.
    """
    source, is_from, target = uri.partition(";")
    if is_from:
        if not _SOURCE.fullmatch(source):
            raise ConfigError(f"{option} {uri}: give tcp://SOURCE:0;HOST:PORT to connect from the address SOURCE")
        target = f"tcp://{target}"
    if check_uri(target if is_from else uri, option).endswith(":*"):
        raise ConfigError(f"{option} {uri}: the port must be a number from 1 to 65535")
    return uri


def link_uri(uri: str) -> str:
    """Return the default address of acknowledgements: the port after that of the data; for ipc another path."""
    if uri.startswith("ipc:"):
        return f"{uri}.link"
    address, _, port = uri.rpartition(":")
    return f"{address}:{int(port) + 1}"
