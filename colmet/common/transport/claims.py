"""Ports bound by default, which a collector gives up if another one is configured to listen there.

Colmet 0.6 has one port, so sites run the collectors of several clusters on consecutive ports of one machine. By
default, acknowledgements use the port after that of the data, so they could block the next collector's data port. The
next collector claims that port: it connects to a Unix socket named after it. The names are in the abstract namespace of
the network namespace, as ports are.
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

PATIENCE_S = 5.0  # timeout for a port to be released
_PAUSE_S = 0.05
_BURST = 16  # connections processed at once
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PORT = re.compile(r"tcp://.+:(\d+)", re.ASCII)


def _name(uri: str) -> str:
    """Return the name of the socket for the port in `uri`, "" without a port."""
    found = _PORT.fullmatch(uri)
    return f"\0colmet-port-{found[1]}" if found else ""


class Claims:
    """Claims to the port in `uri` of this process, by processes of the same user, or of root.

    `fd` is readable when a claim may have come; -1 if none can come.
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
            except OSError:  # the name is in use: the port stays
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
        """Accept no more claims; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self.fd = None, -1


def bind(bind_once: Callable[[], None], uri: str) -> None:
    """Bind an address; if it is in use, claim its port from a collector that uses it by default; or raise ZMQError."""
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
    """Claim a port; return whether any process accepts claims for it."""
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
