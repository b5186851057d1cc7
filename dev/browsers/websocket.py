"""A WebSocket to a program on this machine: texts of any length in both directions, no extensions."""

from __future__ import annotations

import base64
import os
import socket
import struct

_CONTINUED, _TEXT, _CLOSE, _PING, _PONG = 0, 1, 8, 9, 10


class WebSocket:
    """A connection (RFC 6455).

    Args:
        port: of 127.0.0.1.
        path: of the address.
        timeout: of the connection and the handshake, s.
    """

    def __init__(self, port: int, path: str, timeout: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        self._file = self._socket.makefile("rb")
        status = self._file.readline()
        if b" 101 " not in status:
            self.close()
            raise ConnectionError(f"no WebSocket at port {port}: {status!r}")
        while self._file.readline().strip():
            pass
        self._socket.settimeout(None)

    def send(self, text: str) -> None:
        """Send a text."""
        self._send(_TEXT, text.encode())

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
        mask = os.urandom(4)
        stream = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        self._socket.sendall(head + mask + (int.from_bytes(data, "big") ^ stream).to_bytes(size, "big"))

    def receive(self) -> str | None:
        """Return the next text; None after the end of the connection."""
        text = b""
        while True:
            head = self._file.read(2)
            if len(head) < 2:
                return None
            kind, size = head[0] & 15, head[1] & 127
            if size == 126:
                (size,) = struct.unpack("!H", self._file.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._file.read(8))
            data = self._file.read(size)
            if kind == _CLOSE:
                return None
            if kind == _PING:
                self._send(_PONG, data)
            elif kind in (_TEXT, _CONTINUED):
                text += data
                if head[0] & 0x80:
                    return text.decode()

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._socket.close()
