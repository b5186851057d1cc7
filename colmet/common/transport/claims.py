"""Ports that a collector takes without being told to, and gives to one that was told to listen there.

Colmet 0.6 has one port, so sites run the collectors of several clusters on consecutive ports of one machine. The port
after that of the data is where this version acknowledges, unless an option names another one: it must not keep the next
collector from its own. The next one connects to a Unix socket that is named after the port. The names are in the
abstract namespace, which belongs to a network namespace, as ports do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
import time
from collections.abc import Callable

import zmq

PATIENCE_S = 5.0  # for a port to be given up
_PAUSE_S = 0.05
_BURST = 16  # connections that are looked at at a time
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PORT = re.compile(r"tcp://.+:(\d+)", re.ASCII)


def _name(uri: str) -> str:
    """Return the name of the socket for the port in `uri`, "" where it has none."""
    found = _PORT.fullmatch(uri)
    return f"\0colmet-port-{found[1]}" if found else ""


class Claims:
    """Requests for a port of this process, of processes of the same user, or of root.

    Args:
        uri: that is bound to the port.

    Attributes:
        fd: readable when there may be one; -1 where none can come.
    """

    def __init__(self, uri: str) -> None:
        self.fd = -1
        self._socket: socket.socket | None = None
        name = _name(uri)
        if name:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                made.bind(name)
                made.listen(_BURST)
            except OSError:  # somebody else has the name: the port stays
                made.close()
                return
            self._socket, self.fd = made, made.fileno()

    def came(self) -> bool:
        """Return whether the port was claimed since the last call."""
        claimed = False
        for _ in range(_BURST if self._socket is not None else 0):
            try:
                one, _ = self._socket.accept()  # type: ignore[union-attr]
            except OSError:
                break
            with one:
                credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                claimed |= _CREDENTIALS.unpack(credentials)[1] in (0, os.geteuid())
        return claimed

    def close(self) -> None:
        """Take no more; also twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self.fd = None, -1


def bind(bind_once: Callable[[], None], uri: str) -> None:
    """Bind an address, and claim its port where another collector can do without it.

    Args:
        bind_once: binds it.
        uri: of the address.

    Raises:
        zmq.ZMQError: it cannot be bound.
    """
    try:
        bind_once()
        return
    except zmq.ZMQError as err:
        if err.errno != errno.EADDRINUSE or not _claim(uri):
            raise
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(_PAUSE_S)
        with contextlib.suppress(zmq.ZMQError):
            bind_once()
            return
    bind_once()


def _claim(uri: str) -> bool:
    """Claim a port; whether anybody takes claims for it."""
    name = _name(uri)
    if not name:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.setblocking(False)
        try:
            one.connect(name)
        except OSError:
            return False
    return True
