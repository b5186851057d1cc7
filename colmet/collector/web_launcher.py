"""Launcher of the JSON interface, a process of its own (`colmet.web`), and the feed of all messages to it.

The process is a child of the collector. With the units of the packages it is a service with a user of its own, started
by systemd when the collector connects to its socket. It is fed through a socket: each message as received, after its
length and its sender. Nothing here waits for the process: its unread messages stay in memory up to a bound, and are
dropped beyond. It sends back counters of its own drops, a line of JSON every few seconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from colmet.common.errors import Refused
from colmet.common.live.summary import Heard
from colmet.common.runtime import logs, python_child
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.pacing import Backoff
from colmet.common.runtime.wakeup import readable
from colmet.common.schema import Batch
from colmet.common.wire.v1 import Described

log = logging.getLogger(__name__)

# -- shared with the process --

FEED = "COLMET_HTTP_FEED"  # the environment variable with the number of the descriptor
MAX_ARGUMENTS_BYTES = 1 << 20
LENGTH = struct.Struct("<I")  # in front of each frame
NOTE = 1 << 31  # added to the length of a frame that is JSON about the feed, not a message
MAX_SENDER_BYTES = 512  # in front of a message, with the zero byte between them
# Counters sent back by the process: tables and hosts without room, samples of senders beyond their share, jobs beyond
# the bound.
DROPPED = ("tables_left_out", "samples_over_share", "jobs_forgotten")

START = "from colmet.web.__main__ import main; sys.exit(main())"

MAX_WAITING_BYTES = 32 << 20
PIECE_BYTES = 256 << 10  # sent at once
RETRY_S = 0.05  # between two attempts to send waiting data
STUCK_S = 60.0  # a process that reads nothing for this long is killed
FIRST_DELAY_S, MAX_DELAY_S = 1.0, 60.0  # before a restart
STEADY_S = 60.0  # a process with this running time has not failed at its start
END_S = 5.0  # for a regular end of the process
GONE_S = 5.0  # after killing it: a hanging disk may hold it for ever
STATUS_S = 10.0  # between two reports of the collector's status
LOOK_S = 0.5  # between two checks of the process
MAX_LINE_BYTES = 64 << 10
_LOGGED = re.compile(r"\S+ \S+ (?:ERROR|CRITICAL) \S+: ")


class WebLauncher:
    """Launcher of the process: starts it, watches it, and sends it all messages.

    `put`, `flush` and `delay_s` are for the main thread and never wait. A thread of its own starts the process, passes
    on its log, and restarts it after its end.

    Args:
        arguments: of the collector's command line, also read by the process.
        heard: the sending nodes, by name; for any thread.
        command: command to start, for tests; that of this Python by default.
        service: path of the socket of a service to connect to; "" starts a child.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        heard: Callable[[], Mapping[str, Heard]] = dict,
        command: Sequence[str] = python_child.command(START),
        monotonic: Callable[[], float] = time.monotonic,
        service: str = "",
    ) -> None:
        self._arguments = list(arguments)
        self._command = [*command, *arguments]
        self._service = service
        self._heard = heard
        self._monotonic = monotonic
        self._lock = threading.Lock()  # of the following attributes; never held for long
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: deque[tuple[bytes, bytes]] = deque()  # heads of frames, messages
        self._described = Described()  # by the queued and sent notes
        self._heard_back = b""  # the beginning of a line
        self._dropped = dict.fromkeys(DROPPED, 0)
        self._rest = memoryview(b"")  # of a partly sent piece
        self._waiting = 0
        self._moved_at: float | None = None  # time of the last progress, or None if nothing waits
        self._reported = 0
        self._sent = self._left_out = self._restarts = self._stuck = 0
        self._left_out_here = 0  # by the current process
        self._failure, self._began = "", -math.inf  # why the last process ended, and when the latest one began
        self._status: Callable[[], Mapping[str, Any]] | None = None
        self._status_at = 0.0  # time of the next report of it
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def report(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Send the collector's status to the process every few seconds. For the time before `start`."""
        self._status = status

    def start(self) -> None:
        """Start the process."""
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Return the state of the process, its restarts, and the counters of its feed."""
        return {
            "running": int(self._socket is not None),
            "restarts": self._restarts,
            "stuck": self._stuck,
            "sent": self._sent,
            "left_out": self._left_out,
            "waiting_bytes": self._waiting,
            **self._dropped,
        }

    @property
    def failure(self) -> str:
        """Return why the process does not run, or has just ended; "" if it works."""
        with self._lock:
            is_steady = self._socket is not None and self._monotonic() - self._began >= STEADY_S
            return "" if is_steady else self._failure

    # -- in the main thread --

    def put(self, message: bytes, sender: str = "", batches: Sequence[Batch] = ()) -> None:
        """Queue a message of a sender with these batches, for `flush` to send; a note describes its new tables."""
        head = sender.encode()[: MAX_SENDER_BYTES - 1] + b"\0"
        head = LENGTH.pack(len(head) + len(message)) + head
        with self._lock:
            if self._socket is not None and self._waiting + len(message) <= MAX_WAITING_BYTES:
                for schema in self._described.new(batches):
                    self._queue.append((_note({"description": schema.text}), b""))
                    self._waiting += len(self._queue[-1][0])
                self._queue.append((head, message))
                self._waiting += len(head) + len(message)
                return
        self._leave_out()

    def flush(self) -> None:
        """Send queued messages as far as the socket has room."""
        if not self._waiting:
            return
        with self._lock:
            if self._socket is None:
                self._clear()
                return
            now = self._monotonic()
            if self._moved_at is None:
                self._moved_at = now
            try:
                while self._waiting:
                    if not self._rest:
                        self._rest = memoryview(self._next_piece())
                    done = self._socket.send(self._rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    self._rest = self._rest[done:]
                    self._waiting -= done
                    self._moved_at = now
                self._moved_at = None
                if self._reported != self._left_out_here:
                    self._put_note(_note({"left_out": self._left_out_here}))
                    self._reported = self._left_out_here
            except BlockingIOError:
                if self._moved_at is not None and now - self._moved_at > STUCK_S:
                    self._end_stuck()
            except OSError:  # the process has ended; the thread will notice
                self._clear()

    def delay_s(self) -> float:
        """Return the seconds until the next call of `flush`."""
        return RETRY_S if self._waiting else math.inf

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._socket is None:  # logged elsewhere
            return
        self._left_out_here += 1
        if powers_of_ten(self._left_out_here):
            log.warning("JSON interface is behind, messages dropped left_out=%d", self._left_out_here)

    # -- with the lock --

    def _next_piece(self) -> bytes:
        parts = []
        size = 0
        while self._queue and size < PIECE_BYTES:
            head, message = self._queue.popleft()
            parts += [head, message]
            size += len(message)
            self._sent += bool(message)
        return b"".join(parts)

    def _put_note(self, frame: bytes) -> None:
        """Put a note in front of the waiting messages."""
        self._rest = memoryview(bytes(self._rest) + frame)
        self._waiting += len(frame)

    def _clear(self) -> None:
        self._queue.clear()
        self._described.clear()
        self._rest = memoryview(b"")
        self._waiting = 0
        self._moved_at = None

    def _end_stuck(self) -> None:
        if self._process is None or self._process.poll() is None:
            self._stuck += 1
            how = "disconnected" if self._process is None else "killed"
            log.error("JSON interface has read nothing for %g s, %s stuck=%d", STUCK_S, how, self._stuck)
            if self._process is not None:
                self._process.kill()
            elif self._socket is not None:
                self._hang_up(self._socket)
        self._clear()

    # -- the thread --

    def _run(self) -> None:
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S, self._monotonic)
        while True:
            self._began = self._monotonic()
            why = self._failure = self._connect() if self._service else self._start_child()
            if self._stopping.is_set():
                return
            if self._monotonic() - self._began >= STEADY_S:
                backoff.reset()
            delay_s = backoff.fail()
            self._restarts += 1
            if powers_of_ten(backoff.failures):
                log.error(
                    "JSON interface ended, it is restarted failures=%d delay_s=%g: %s", backoff.failures, delay_s, why
                )
            if self._stopping.wait(delay_s):
                return

    def _connect(self) -> str:
        """Connect to the service, for systemd to start it; return the cause of its end."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
            ours.settimeout(END_S)
            try:
                ours.connect(self._service)
                ours.sendall(_note({"arguments": self._arguments, "directory": os.getcwd()}))
            except OSError as err:
                why = err.strerror or err
                return f"cannot connect to {self._service}: {why}; see `systemctl status colmet-web.socket`"
            with self._feeding(ours, None):
                self._await_end(ours)
        return "its service has ended; see `journalctl -u colmet-web`"

    def _await_end(self, ours: socket.socket) -> None:
        """Wait for the service to disconnect; at the collector's end only for `END_S`."""
        until = math.inf
        while time.monotonic() < until:
            if readable([ours.fileno()], LOOK_S) and not self._hear(ours):
                return
            self._report()
            if self._stopping.is_set() and until == math.inf:
                until = time.monotonic() + END_S

    def _hear(self, ours: socket.socket) -> bool:
        """Read the counters sent back by the process; return False if it has disconnected."""
        try:
            part = ours.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._heard_back = (self._heard_back[-4096:] + part).split(b"\n")
        for line in lines[-1:]:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                said = json.loads(line)
                self._dropped = {name: max(0, int(said[name])) for name in DROPPED}
        return bool(part)

    def _report(self) -> None:
        """Put a note of the collector's status between the messages, if it is due."""
        now = self._monotonic()
        if self._status is None or now < self._status_at or self._stopping.is_set():
            return
        self._status_at = now + STATUS_S
        try:
            note = _note({"status": self._status()})
        except Refused as err:  # the main thread is busy, or about to end
            log.debug("no status for the JSON interface: %s", err)
            return
        with self._lock:
            if self._socket is not None and self._waiting <= MAX_WAITING_BYTES:
                self._put_note(note)

    def _start_child(self) -> str:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # the collector's own output may be for rows
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    env={**python_child.environment(), FEED: str(theirs.fileno())},
                )
            except OSError as err:
                return f"cannot start {self._command[0]}: {err.strerror}"
            with process:
                theirs.close()
                with self._feeding(ours, process):
                    try:
                        said = self._attend(process, ours)
                    finally:
                        process.kill()
                status = process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"{said} ({how})" if said else how

    @contextlib.contextmanager
    def _feeding(self, ours: socket.socket, process: subprocess.Popen[bytes] | None) -> Iterator[None]:
        """Send messages there in the `with` block, after a note of the nodes heard so far."""
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        note = _note({"heard": {name: [one.seen_ns, one.lag_ns] for name, one in self._heard().items()}})
        with self._lock:
            self._clear()
            self._left_out_here = self._reported = 0
            self._status_at = 0.0
            self._heard_back = b""
            self._socket, self._process = ours, process
            self._put_note(note)
        self.flush()  # the main thread may wait for the next message
        try:
            yield
        finally:
            with self._lock:
                self._socket = self._process = None
                self._clear()

    def _attend(self, process: subprocess.Popen[bytes], ours: socket.socket) -> str:
        """Pass on the log of the process until its end; return its last error."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        lines = _LineRelay()
        until = math.inf
        while True:
            is_over = process.poll() is not None  # its output is complete by now
            came = bool(readable([output], 0 if is_over else LOOK_S))
            part = os.read(output, MAX_LINE_BYTES) if came else b""
            self._hear(ours)
            self._report()
            if part:
                lines.add(part)
            elif is_over:
                lines.end()
                return lines.error
            elif came:  # it has closed its output, and is about to end
                self._stopping.wait(0.05)
            if self._stopping.is_set() and until == math.inf:
                until = time.monotonic() + END_S
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_RDWR)
            if time.monotonic() >= until:
                process.kill()

    def close(self) -> None:
        """End the process; idempotent."""
        self._stopping.set()
        with self._lock:
            if self._socket is not None:
                self._hang_up(self._socket)
        if self._thread.ident is not None:
            self._thread.join(END_S + GONE_S)
            if self._thread.is_alive():
                log.info("JSON interface does not end, left behind")

    def _hang_up(self, ours: socket.socket) -> None:
        """End the stream; for a service only the writing side, as reading detects its end."""
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR if self._service else socket.SHUT_RDWR)


def _note(content: Mapping[str, object]) -> bytes:
    """Return a frame about the feed itself."""
    packed = json.dumps(content).encode()
    return LENGTH.pack(len(packed) | NOTE) + packed


class _LineRelay:
    """Relay of the process's output, line by line.

    Attributes:
        error: the last line with an error, without time and module; else the last line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_error = False
        self.error = ""

    def add(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self.end()

    def end(self) -> None:
        """Pass on the rest, a line without its end."""
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""

    def _pass_on(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        with contextlib.suppress(OSError):
            content = logs.passed_on(text).encode()
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, content + b"\n")
        found = _LOGGED.match(text)
        if found or (text and not self._is_error):
            self._is_error, self.error = bool(found), text[found.end() if found else 0 :][:300]
