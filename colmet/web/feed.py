"""Read the stream of the collector: frames, their messages, and the batches in these."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from colmet.collector.web_launcher import FEED, LENGTH, MAX_ARGUMENTS_BYTES, MAX_SENDER_BYTES, NOTE
from colmet.common.errors import ColmetError, WireError
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.schema import Batch
from colmet.common.wire import MAX_MESSAGE_BYTES, Decoder

log = logging.getLogger(__name__)

LISTENER = 3  # SD_LISTEN_FDS_START
FIRST_S = 10.0  # timeout for the collector's command line
READ_BYTES = 1 << 20
MAX_NOTE_BYTES = 16 << 20
REPORT_S = 10.0  # period of reports to the collector


class FeedError(ColmetError):
    """The stream is missing, or is not from a collector."""


def inherited(environment: Mapping[str, str]) -> socket.socket:
    """Return the inherited stream of the collector; FeedError if the environment names no stream."""
    number = environment.get(FEED, "")
    try:
        feed = socket.socket(fileno=int(number))
        os.set_inheritable(feed.fileno(), False)  # a child process must not keep it open
    except (ValueError, OSError) as err:
        raise FeedError(f"colmet-collector starts this, with --http-listen; {FEED} is {number!r:.40}") from err
    return feed


def connected(environment: MutableMapping[str, str]) -> tuple[socket.socket, list[str], socket.socket | None]:
    """Return the stream of the collector, the collector's command line, and the service's netlink socket.

    The service manager starts this process for a connection to its socket; only the collector may connect. The netlink
    socket queries the kernel for users of this machine; None if the service has none.

    Raises:
        FeedError: the socket is missing, or the stream is not from a collector.
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count not in ("1", "2"):
        raise FeedError("colmet-web.socket starts this for colmet-collector, with --http-listen")
    with contextlib.ExitStack() as stack:
        try:
            with socket.socket(fileno=LISTENER) as listener:
                feed = stack.enter_context(listener.accept()[0])
            kernel = stack.enter_context(socket.socket(fileno=LISTENER + 1)) if count == "2" else None
            arguments = _read_arguments(feed)
        except (OSError, WireError) as err:
            raise FeedError(f"the collector's stream cannot be read: {err}") from err
        stack.pop_all()
    return feed, arguments, kernel


def _read_arguments(feed: socket.socket) -> list[str]:
    """Return the collector's command line, and change to its directory, the base of relative paths there."""
    feed.settimeout(FIRST_S)
    (head,) = LENGTH.unpack(_read_exactly(feed, LENGTH.size))
    if not head & NOTE or head & ~NOTE > MAX_ARGUMENTS_BYTES:
        raise FeedError("a stream that does not begin with the collector's command line")
    begin = _parse_note(_read_exactly(feed, head & ~NOTE))
    arguments, directory = begin.get("arguments"), begin.get("directory")
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        raise FeedError("a stream that does not begin with the collector's command line")
    if isinstance(directory, str):
        os.chdir(directory)
    feed.settimeout(None)
    return arguments


def _read_exactly(source: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = source.recv(size - len(content))
        if not part:
            raise FeedError("the collector has disconnected before it sent its command line")
        content += part
    return bytes(content)


class Frames:
    """A splitter of a stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, part: bytes | memoryview) -> Iterator[tuple[bool, bytes]]:
        """Add bytes, and yield each complete frame as (whether it is a note, content).

        Raises:
            FeedError: the length of a frame is invalid; the rest of the stream cannot be read either.
        """
        self._rest += part
        at = 0
        try:
            while len(self._rest) - at >= LENGTH.size:
                (head,) = LENGTH.unpack_from(self._rest, at)
                is_note, size = bool(head & NOTE), head & ~NOTE
                if size > (MAX_NOTE_BYTES if is_note else MAX_SENDER_BYTES + MAX_MESSAGE_BYTES):
                    raise FeedError(f"the collector has sent a frame of {size} bytes; are both of one version?")
                first = at + LENGTH.size
                if len(self._rest) - first < size:
                    break
                at = first + size
                yield is_note, bytes(memoryview(self._rest)[first:at])
        finally:
            del self._rest[:at]


class Feed:
    """A reader of the collector's stream, until the collector ends.

    It passes the batches of each message with their sender to `take`, each note of the collector to `note`, and the
    counters of `dropped` data to the collector.
    """

    def __init__(
        self,
        source: socket.socket,
        take: Callable[[Sequence[Batch], str], None],
        note: Callable[[Mapping[str, Any]], None],
        dropped: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._source = source
        self._take = take
        self._note = note
        self._dropped = dropped
        self._report_at = 0.0
        self._frames = Frames()
        self._decoder = Decoder()
        self._taken = self._bad = self._failures = 0

    def counters(self) -> dict[str, int]:
        """Return counters of messages: received, malformed, and failed by a defect."""
        return {"taken": self._taken, "bad": self._bad, "failures": self._failures}

    def run(self) -> None:
        """Read to the end of the stream; FeedError if the stream is not from a collector."""
        buffer = memoryview(bytearray(READ_BYTES))
        while True:
            try:
                count = self._source.recv_into(buffer)
            except OSError as err:
                log.debug("feed ended: %s", err)
                return
            if not count:
                return
            for is_note, content in self._frames.add(buffer[:count]):
                try:
                    if is_note:
                        note = _parse_note(content)
                        if "description" in note:
                            self._decoder.learn(str(note["description"]).encode())
                        else:
                            self._note(note)
                    else:
                        sender, _, message = content.partition(b"\0")
                        self._take(self._decoder.decode(message).batches, sender.decode(errors="replace"))
                        self._taken += 1
                except WireError as err:
                    self._bad += 1
                    if powers_of_ten(self._bad):
                        log.warning("message of the feed cannot be read bad=%d: %.300s", self._bad, err)
                except Exception:  # a defect must not end the process
                    self._failures += 1
                    if powers_of_ten(self._failures):
                        log.exception("message of the feed failed failures=%d", self._failures)
            self._report()

    def _report(self) -> None:
        """Send counters of dropped data to the collector, every few seconds; later if the socket's buffer is full."""
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + REPORT_S
            with contextlib.suppress(OSError):
                self._source.send(
                    json.dumps(self._dropped()).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                )


def _parse_note(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as err:
        raise WireError(f"a note is not JSON: {err}") from err
    if not isinstance(found, dict):
        raise WireError("a note is not a map")
    return found
