"""Server of the local control socket: a Unix socket with ZMTP 3.0 without keys (RFC 23).

Without free descriptors, libzmq aborts the process on a connection to a Unix socket. Here the connection waits.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

MAX_PEERS = 64  # beyond it, the peer silent for the longest time is closed
MAX_PARTS = 3  # of a message: as many as our clients send
READ_BYTES = 1 << 16
LINGER_S = 0.2
RETRY_S = 0.05  # after a failed accept
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
_names = itertools.count()
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame


class ReceivedRequest(NamedTuple):
    """A request, and the frames before it: the envelope of its reply. The first frame identifies the peer."""

    envelope: Sequence[bytes]
    message: bytes


class _Peer:
    """A connection, with the bound on its messages."""

    def __init__(self, accepted: socket.socket, max_bytes: int) -> None:
        self.socket = accepted
        self.name = b"%d" % next(_names)
        self.heard = time.monotonic()
        self.out = bytearray(_GREETING + _frame(_READY, _COMMAND))
        self._max_bytes = max_bytes
        self._came = bytearray()
        self._greeted = False
        self._parts: list[bytes] = []

    def read(self) -> list[list[bytes]]:
        """Return the messages complete by now, each with its parts.

        Raises:
            OSError: it has gone.
            ValueError: it does not use ZMTP 3, or sends too much.
        """
        part = self.socket.recv(READ_BYTES)
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "it has gone")
        self.heard = time.monotonic()
        self._came += part
        if not self._greeted:
            if self._came[:1] != b"\xff" or (len(self._came) > 10 and (self._came[9] != 0x7F or self._came[10] < 3)):
                raise ValueError("not ZMTP 3")
            if len(self._came) < len(_GREETING):
                return []
            if self._came[12:32].rstrip(b"\0") != b"NULL":
                raise ValueError("a Unix socket has no keys")
            del self._came[: len(_GREETING)]
            self._greeted = True
        messages = []
        while (frame := self._frame()) is not None:
            flags, body = frame
            if flags & _COMMAND:  # READY, and others such as PING, without a reply
                continue
            self._parts.append(body)
            if len(self._parts) > 1000 or sum(map(len, self._parts)) > self._max_bytes:
                raise ValueError("a message that is too long")
            if not flags & _MORE:
                messages.append(self._parts)
                self._parts = []
        return messages

    def _frame(self) -> tuple[int, bytes] | None:
        """Return the next whole frame: its flags and content."""
        if len(self._came) < 2:
            return None
        flags, head = self._came[0], 2
        size = self._came[1]
        if flags & _LONG:
            head = 9
            if len(self._came) < head:
                return None
            (size,) = struct.unpack_from(">Q", self._came, 1)
        if size > self._max_bytes or flags & ~(_MORE | _LONG | _COMMAND):
            raise ValueError("a frame that is too long, or none")
        if len(self._came) < head + size:
            return None
        body = bytes(self._came[head : head + size])
        del self._came[: head + size]
        return flags, body

    def write(self) -> None:
        """Write as much as the socket accepts; OSError if it has gone."""
        with contextlib.suppress(BlockingIOError):
            while self.out:
                del self.out[: self.socket.send(memoryview(self.out)[: 1 << 18])]


def _frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + struct.pack(">Q", len(body)) + body


class LocalServer:
    """Requests from a Unix socket. Used, and closed, by one thread; `wake` is for any other.

    Args:
        path: of the socket; an existing file is replaced. Open to its user only.
        max_bytes: of a request.

    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._peers: dict[int, _Peer] = {}
        self._waiting: deque[ReceivedRequest] = deque()
        self._accept_at = 0.0
        self._not_accepted = 0
        self._wakeup = Wakeup()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._socket.bind(path)
            self._socket.listen(16)
        except BaseException:
            self._path = ""
            self.close()
            raise
        finally:
            os.umask(before)
        self.uri = f"ipc://{path}"

    def receive(self) -> ReceivedRequest | None:
        """Wait for the next request and return it; None once `wake` was called."""
        while not self._waiting:
            poller = select.poll()
            poller.register(self._wakeup.fd, select.POLLIN)
            delay_s = self._accept_at - time.monotonic()
            if delay_s <= 0:
                poller.register(self._socket, select.POLLIN)
            for descriptor, peer in self._peers.items():
                poller.register(descriptor, select.POLLOUT if peer.out else select.POLLIN)
            for descriptor, event in poller.poll(int(1000 * delay_s) + 1 if delay_s > 0 else None):
                if descriptor == self._wakeup.fd:
                    return None
                if descriptor == self._socket.fileno():
                    self._accept()
                elif descriptor in self._peers:
                    self._serve(descriptor, event)
        return self._waiting.popleft()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError as err:
            if err.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                self._accept_at = time.monotonic() + RETRY_S
                self._not_accepted += 1
                if powers_of_ten(self._not_accepted):
                    log.warning("control socket: connection waits: %s failures=%d", err.strerror, self._not_accepted)
            return
        if len(self._peers) >= MAX_PEERS:
            self._drop(min(self._peers, key=lambda descriptor: self._peers[descriptor].heard))
        accepted.setblocking(False)
        self._peers[accepted.fileno()] = _Peer(accepted, self._max_bytes)

    def _serve(self, descriptor: int, event: int) -> None:
        peer = self._peers[descriptor]
        try:
            if event & select.POLLOUT:
                peer.write()
                return
            for parts in peer.read():
                # too many parts for a client of ours: refused as one bad message
                asked = parts if len(parts) <= MAX_PARTS else [b""]
                self._waiting.append(ReceivedRequest([peer.name, *asked[:-1]], asked[-1]))
        except (OSError, ValueError):
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._peers.pop(descriptor).socket.close()

    def send(self, envelope: Sequence[bytes], message: bytes) -> None:
        """Send a reply; lost if the peer has gone."""
        for descriptor, peer in self._peers.items():
            if peer.name == envelope[0]:
                for part in envelope[1:]:
                    peer.out += _frame(part, _MORE)
                peer.out += _frame(message)
                try:
                    peer.write()
                except OSError:
                    self._drop(descriptor)
                return

    def wake(self) -> None:
        """Have `receive` return None from now on."""
        self._wakeup.wake()

    def close(self) -> None:
        """Close, and remove the socket's file; idempotent."""
        if self._wakeup.fd < 0:
            return
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # before closing: a listening one is never replaced
        until = time.monotonic() + LINGER_S
        for peer in self._peers.values():  # replies in transit
            with contextlib.suppress(OSError):
                peer.socket.settimeout(max(0.001, until - time.monotonic()))
                peer.socket.sendall(peer.out)
            peer.socket.close()
        self._peers.clear()
        self._socket.close()
        self._wakeup.close()
