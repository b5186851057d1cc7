"""Read the feed of the collector: frames, their messages, and the batches in these."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colmet.collector.feed import LENGTH, MAX_SENDER_BYTES, NOTE
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import ColmetError, WireError
from colmet.common.schema import Batch
from colmet.common.wire import MAX_MESSAGE_BYTES, Decoder

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
MAX_NOTE_BYTES = 16 << 20
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 10.0  # before another connection


class FeedError(ColmetError):
    """The stream is not from a collector."""


def split_frames(rest: bytearray) -> Iterator[tuple[bool, bytes]]:
    """Yield each complete frame of a stream's bytes as (whether it is a note, content), and remove it there.

    FeedError if the length of a frame is invalid: the rest of the stream cannot be read either.
    """
    at = 0
    try:
        while len(rest) - at >= LENGTH.size:
            (head,) = LENGTH.unpack_from(rest, at)
            is_note, size = bool(head & NOTE), head & ~NOTE
            if size > (MAX_NOTE_BYTES if is_note else MAX_SENDER_BYTES + MAX_MESSAGE_BYTES):
                raise FeedError(f"a frame of {size} bytes; are collector and colmet-web of one version?")
            first = at + LENGTH.size
            if len(rest) - first < size:
                return
            at = first + size
            yield is_note, bytes(memoryview(rest)[first:at])
    finally:
        del rest[:at]


@dataclass(eq=False)
class Feed:
    """A reader of the collector's feed, which connects again after each end."""

    paths: Sequence[str]  # of the collector's socket, in order of preference
    take: Callable[[Sequence[Batch], str], None]  # gets the batches of each message, and their sender
    note: Callable[[Mapping[str, Any]], None]  # gets each note of the collector
    begin: Callable[[], None] = lambda: None  # called for each connection, before its first message

    def __post_init__(self) -> None:
        self._counts = {"away": int(bool(self.paths)), "connections": 0, "taken": 0, "bad": 0, "failures": 0}

    def counters(self) -> dict[str, int]:
        """Return whether the collector is `away`, connections, and messages: taken, malformed, failed by a defect."""
        return dict(self._counts)

    def follow(self, ending: threading.Event) -> None:
        """Read the feed until `ending`."""
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        while not ending.is_set():
            why = self._connect(backoff)
            self._counts["away"] = 1
            delay_s = backoff.fail()
            if powers_of_ten(backoff.failures):
                log.warning("no feed of the collector, tried again failures=%d: %s", backoff.failures, why)
            ending.wait(delay_s)

    def _connect(self, backoff: Backoff) -> str:
        """Read from the first socket that accepts a connection, to its end; return the cause of the end."""
        why = ""
        for path in self.paths:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as source:
                try:
                    source.connect(path)
                except OSError as err:
                    why = why or f"{path}: {err.strerror or err}"
                    continue
                backoff.reset()
                log.info("feed of the collector begins: socket=%s", path)
                self._counts["connections"] += 1
                try:
                    self.read(source)
                except (FeedError, OSError) as err:
                    return f"{path}: {err}"
                return f"{path}: the collector has ended it"
        return why

    def read(self, source: socket.socket) -> None:
        """Read one connection to its end; FeedError if it is not from a collector."""
        buffer, rest, decoder = memoryview(bytearray(READ_BYTES)), bytearray(), Decoder()
        self.begin()
        self._counts["away"] = 0
        while count := source.recv_into(buffer):
            rest += buffer[:count]
            for is_note, content in split_frames(rest):
                try:
                    if is_note:
                        self._read_note(content, decoder)
                    else:
                        sender, _, message = content.partition(b"\0")
                        self.take(decoder.decode(message).batches, sender.decode(errors="replace"))
                        self._counts["taken"] += 1
                except WireError as err:
                    self._counts["bad"] += 1
                    if powers_of_ten(self._counts["bad"]):
                        log.warning("message of the feed cannot be read bad=%d: %.300s", self._counts["bad"], err)
                except Exception:  # a defect must not end the process
                    self._counts["failures"] += 1
                    if powers_of_ten(self._counts["failures"]):
                        log.exception("message of the feed failed failures=%d", self._counts["failures"])

    def _read_note(self, content: bytes, decoder: Decoder) -> None:
        try:
            note = json.loads(content)
        except (ValueError, RecursionError) as err:
            raise WireError(f"a note is not JSON: {err}") from err
        if not isinstance(note, dict):
            raise WireError("a note is not a map")
        if "description" in note:
            decoder.learn(str(note["description"]).encode())
        else:
            self.note(note)
