"""A disk with a volatile write cache, for machines whose power is cut: an NBD server on a Unix socket.

What is written stays in memory until the machine flushes; of what was not flushed, each block of 4 KiB is lost with
probability 1/2 at a cut, whatever the order of the writes. (The fixed newstyle handshake and simple replies of the NBD
protocol, for one connection at a time.)
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

BLOCK = 4096
MAGIC, OPTION, REPLY_OF_OPTION = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
REQUEST, REPLY = 0x25609513, 0x67446698
EXPORT_NAME, ABORT, GO = 1, 2, 7
ACKNOWLEDGED, INFO, UNSUPPORTED = 1, 3, 1 << 31 | 1
HAS_FLAGS, SEND_FLUSH = 1, 4
READ, WRITE, DISCONNECT, FLUSH = range(4)
EINVAL = 22


class VolatileDisk:
    """The disk, in a file, and the server.

    Args:
        path: of the file, which has its size.
        place: of the socket.

    Attributes:
        flushes: number of times that the machine had it write all.
    """

    def __init__(self, path, place):
        self.flushes = 0
        self._fd = os.open(path, os.O_RDWR)
        self._size = os.fstat(self._fd).st_size
        self._cache = {}  # number of the block -> its content
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def unflushed(self):
        """Number of blocks that a cut may lose."""
        return len(self._cache)

    def cut(self, rng):
        """Lose what a power cut would, of a machine that has ended; number of blocks not flushed, and of those lost."""
        with self._lock:
            blocks, self._cache = self._cache, {}
            kept = [number for number in blocks if rng.random() < 0.5]
            for number in kept:
                os.pwrite(self._fd, blocks[number], number * BLOCK)
            return len(blocks), len(blocks) - len(kept)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        os.close(self._fd)

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError, EOFError, struct.error):
                if self._shake_hands(connection):
                    while self._answer(connection):
                        pass

    def _shake_hands(self, connection):
        """Agree on the one export there is; whether the client goes on."""
        connection.sendall(struct.pack(">QQH", MAGIC, OPTION, 1))
        received(connection, 4)
        flags = HAS_FLAGS | SEND_FLUSH
        while True:
            _, option, length = struct.unpack(">QII", received(connection, 16))
            received(connection, length)
            if option == EXPORT_NAME:
                connection.sendall(struct.pack(">QH124x", self._size, flags))
                return True
            answers = {GO: ((INFO, struct.pack(">HQH", 0, self._size, flags)), (ACKNOWLEDGED, b""))}
            for kind, data in answers.get(option, ((ACKNOWLEDGED if option == ABORT else UNSUPPORTED, b""),)):
                connection.sendall(struct.pack(">QIII", REPLY_OF_OPTION, option, kind, len(data)) + data)
            if option in (GO, ABORT):
                return option == GO

    def _answer(self, connection):
        """Answer one request; whether there may be another one."""
        magic, _, kind, handle, at, length = struct.unpack(">IHH8sQI", received(connection, 28))
        if magic != REQUEST or kind == DISCONNECT:
            return False
        data, error = b"", 0
        if kind == WRITE:
            content = received(connection, length)
            with self._lock:
                self._write(at, content)
        elif kind == READ:
            with self._lock:
                data = self._read(at, length)
        elif kind == FLUSH:
            with self._lock:
                self._flush()
        else:
            error = EINVAL
        connection.sendall(struct.pack(">II8s", REPLY, error, handle) + data)
        return True

    def _block(self, number):
        return self._cache.get(number) or os.pread(self._fd, BLOCK, number * BLOCK).ljust(BLOCK, b"\0")

    def _read(self, at, length):
        first = at // BLOCK
        blocks = b"".join(self._block(number) for number in range(first, (at + length - 1) // BLOCK + 1))
        return blocks[at - first * BLOCK :][:length]

    def _write(self, at, content):
        while content:
            number, start = divmod(at, BLOCK)
            part, content = content[: BLOCK - start], content[BLOCK - start :]
            if len(part) < BLOCK:
                old = self._block(number)
                part = old[:start] + part + old[start + len(part) :]
            self._cache[number] = part
            at = (number + 1) * BLOCK

    def _flush(self):
        for number, content in self._cache.items():
            os.pwrite(self._fd, content, number * BLOCK)
        self._cache = {}
        self.flushes += 1


def received(connection, length):
    """So many bytes."""
    parts = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
