"""Addresses of sockets and of their monitors, and waiting for sockets and descriptors at once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import zmq

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


if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]
else:
    Socket = zmq.Socket  # pyzmq 22, of Ubuntu 22.04, has no index
_monitors = itertools.count(1)


def wait(readable: Iterable[int | Socket], writable: Iterable[Socket], timeout_s: float) -> None:
    """Wait until one of these can be read or written, at most `timeout_s`."""
    poller = zmq.Poller()
    for source in readable:
        poller.register(source, zmq.POLLIN)
    for socket in writable:
        poller.register(socket, zmq.POLLOUT)
    poller.poll(max(0, int(timeout_s * 1000 + 0.999)))


def monitor_address() -> str:
    """Return the address of a new monitor, used once: libzmq frees that of a closed one later."""
    return f"inproc://monitor-{next(_monitors)}"
