"""The feed: all messages to `colmet-web`, over a Unix socket, each as received, after its length and its sender.

Nothing waits for a reader: its unread messages stay in memory up to a bound, and are dropped and counted beyond it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.common.daemon import control
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import Refused
from colmet.common.live.summary import Heard
from colmet.common.schema import Batch
from colmet.common.wire.v1 import Described

log = logging.getLogger(__name__)

# -- shared with the readers --

LENGTH = struct.Struct("<I")  # in front of each frame
NOTE = 1 << 31  # added to the length of a frame that is JSON about the feed, not a message
MAX_SENDER_BYTES = 512  # in front of a message, with the zero byte between them

SOCKET_MODE = 0o660  # for members of the collector's group, which may read what it stores
READERS = 4
MAX_WAITING_BYTES = 32 << 20  # of one reader
PERIOD_S = 0.1  # between two sends
STUCK_S = 60.0  # a reader that reads nothing for this long is disconnected
STATUS_S = 10.0  # between two reports of the collector's status


def paths_of(options: argparse.Namespace) -> list[str]:
    """Return the places for the socket by the collector's options, the best first; none without a feed."""
    place = options.control_socket
    return [beside(one) for one in ([place] if place else [])] if place is not None else default_paths()


def default_paths() -> list[str]:
    """Return the places where a collector with default options has its socket, the best first."""
    return [beside(place) for place in control.default_paths("collector")]


def beside(control_socket: str) -> str:
    """Return the path of the feed beside a control socket; "" beside one over TCP."""
    return "" if "://" in control_socket else f"{os.path.splitext(control_socket)[0]}-feed.sock"


def bind_path(path: str, mode: int) -> socket.socket:
    """Return a listening Unix socket for its owner and group. An unused socket at the path is replaced.

    Raises:
        OSError: the path is in use, or cannot be written.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _is_in_use(path):
                os.unlink(path)
        listener.bind(path)
        os.chmod(path, mode)
        listener.listen()  # no connections before this
    except OSError:
        listener.close()
        raise
    return listener


def _is_in_use(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def note(content: Mapping[str, object]) -> bytes:
    """Return a frame about the feed itself."""
    packed = json.dumps(content).encode()
    return LENGTH.pack(len(packed) | NOTE) + packed


class _Reader:
    """A connected reader, and the frames that wait for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock = threading.Lock()  # of the following attributes; never held for long
        self._frames: list[bytes] = []
        self._described = Described()  # by the frames so far
        self.waiting_bytes = self.left_out = self._reported = 0

    def put(self, head: bytes, message: bytes, batches: Sequence[Batch]) -> bool:
        """Queue a message, after a description of its new tables; return whether there was room."""
        with self._lock:
            if self.waiting_bytes + len(message) > MAX_WAITING_BYTES:
                self.left_out += 1
                return False
            frames = [*[note({"description": schema.text}) for schema in self._described.new(batches)], head, message]
            self._frames += frames
            self.waiting_bytes += sum(map(len, frames))
            return True

    def take(self) -> bytes:
        """Return all frames that wait, after a note of messages dropped since the last one."""
        with self._lock:
            frames, self._frames, self.waiting_bytes = self._frames, [], 0
            dropped = self.left_out - self._reported
            self._reported = self.left_out
        return b"".join([note({"left_out": dropped}), *frames] if dropped else frames)


class FeedServer:
    """The sender of all messages to the readers that connect to a socket.

    `put` is for the main thread, and never waits. A thread accepts readers, and each reader has a thread of its own.

    Args:
        paths: of the socket, the best first; the first possible one is used.
        heard: the sending nodes, by name; for any thread.
    """

    def __init__(self, paths: Sequence[str], heard: Callable[[], Mapping[str, Heard]] = dict) -> None:
        self._heard = heard
        self._readers: tuple[_Reader, ...] = ()
        self._lock = threading.Lock()  # of the assignment of `_readers`
        self._sent = self._left_out = self._stuck = 0
        self._status: Callable[[], Mapping[str, Any]] | None = None
        self._ending = threading.Event()
        self._listener: socket.socket | None = None
        self.path = ""
        why = ""
        for path in filter(None, paths):
            with contextlib.suppress(OSError):
                os.mkdir(os.path.dirname(path), 0o700)  # as for the control socket
            try:
                self._listener, self.path = bind_path(path, SOCKET_MODE), path
                break
            except OSError as err:
                why = f"{path}: {err.strerror or err}"
        if why and self._listener is None:
            log.warning("no feed for colmet-web: %s; it is beside --control-socket", why)
        self._thread = threading.Thread(target=self._accept, name="feed", daemon=True)

    def report(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Send the collector's status to the readers every few seconds. For the time before `start`."""
        self._status = status

    def start(self) -> None:
        """Accept readers."""
        if self._listener is not None:
            self._thread.start()

    def counters(self) -> dict[str, int]:
        """Return the number of readers, and what was sent to them, dropped and waits."""
        readers = self._readers
        return {
            "readers": len(readers),
            "stuck": self._stuck,
            "sent": self._sent,
            "left_out": self._left_out,
            "waiting_bytes": sum([reader.waiting_bytes for reader in readers]),
        }

    def put(self, message: bytes, sender: str = "", batches: Sequence[Batch] = ()) -> None:
        """Queue a message of a sender with these batches for each reader."""
        readers = self._readers
        if not readers:
            return
        name = sender.encode()[: MAX_SENDER_BYTES - 1] + b"\0"
        head = LENGTH.pack(len(name) + len(message)) + name
        for reader in readers:
            if reader.put(head, message, batches):
                self._sent += 1
                continue
            self._left_out += 1
            if powers_of_ten(reader.left_out):
                log.warning("colmet-web is behind, messages dropped left_out=%d", reader.left_out)

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._ending.is_set():
            try:
                connection = self._listener.accept()[0]
            except OSError:  # it is closed, or there is no descriptor for one more
                self._ending.wait(PERIOD_S)
                continue
            if len(self._readers) >= READERS:
                connection.close()
                continue
            connection.settimeout(STUCK_S)
            threading.Thread(target=self._serve, args=(_Reader(connection),), name="feed", daemon=True).start()

    def _serve(self, reader: _Reader) -> None:
        heard = {name: [one.seen_ns, one.lag_ns] for name, one in self._heard().items()}
        first = note({"heard": heard})
        with self._lock:
            self._readers = (*self._readers, reader)
        status_at = 0.0
        try:
            reader.connection.sendall(first)
            while not self._ending.wait(PERIOD_S):
                frames = reader.take()
                if time.monotonic() >= status_at:
                    status_at = time.monotonic() + STATUS_S
                    frames += self._status_note()
                if frames:
                    reader.connection.sendall(frames)
        except OSError as err:
            if isinstance(err, socket.timeout):  # Python 3.9 has no TimeoutError here
                self._stuck += 1
                log.error("colmet-web has read nothing for %g s, disconnected stuck=%d", STUCK_S, self._stuck)
        finally:
            with self._lock:
                self._readers = tuple([one for one in self._readers if one is not reader])
            reader.connection.close()

    def _status_note(self) -> bytes:
        try:
            return b"" if self._status is None else note({"status": self._status()})
        except Refused as err:  # the main thread is busy, or about to end
            log.debug("no status for colmet-web: %s", err)
            return b""

    def close(self) -> None:
        """End the feed; idempotent."""
        self._ending.set()
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._listener = None
