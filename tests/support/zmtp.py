"""The bytes of ZMTP 3.0 (RFC 23), for peers that do not keep to it."""

from __future__ import annotations

import socket
import struct


def greeting(mechanism=b"NULL", version=3):
    return b"\xff" + bytes(8) + b"\x7f" + bytes([version, 0]) + mechanism.ljust(20, b"\0") + bytes(32)


def ready(kind=b"PUSH"):
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return b"\x04" + bytes([len(body)]) + body


def frame(body, more):
    return bytes([2 | more]) + struct.pack(">Q", len(body)) + body


def huge_command(size):
    """The start of a command of `size` bytes."""
    return b"\x06" + struct.pack(">Q", size)


def read(connection, size):
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def address(uri):
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def connect(uri, kind=b"PUSH"):
    """A connection without keys, as far as the first message."""
    connection = socket.create_connection(address(uri), timeout=20)
    connection.sendall(greeting())
    read(connection, 64)
    connection.sendall(ready(kind))
    size = read(connection, 2)[1]
    read(connection, size)
    return connection
