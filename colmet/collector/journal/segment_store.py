"""The directory of the journal: its lock, its name, its segments, and copies of damaged bytes."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

from colmet.collector.journal import segments
from colmet.collector.journal.output_state import MAX_BYTES, parse
from colmet.collector.journal.segments import MESSAGE, SENDERS, SegmentReader
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ConfigError, is_later, later_form
from colmet.common.host.files import check_writable, make, reason_with_remedy, sync_directory, write_whole
from colmet.common.record_log import Damage, LogRecord, LogWriter

log = logging.getLogger(__name__)

FORM = 2  # of the directory
AWAY = "move the directory away to start a new journal: its unwritten rows wait there for that version"
NAME_FILE = "journal.json"
JOURNAL = re.compile("[0-9a-f]{16}", re.ASCII)
LOCK_FILE = "lock"
NEW_FILE = "new"  # a segment being created
ASIDE = "damaged"
MAX_ASIDE_BYTES, MAX_ASIDE_FILES = 64 << 20, 1000
# Records written by all outputs stay up to this share of the size limit: an HDF5 file is rebuilt from them.
KEEP_SHARE = 0.5


class SegmentStore:
    """The segments of a journal, in one directory; no other process may use it.

    `write` and `trim` are for one thread; any thread may read. The segment being written::

        none -- write --> open -- write --> open -- write(begins) --> open, the next one
         ^                 |
         +-----------------+  the disk failed, or the rest of a failed write cannot be cut off; else it stays open

    Args:
        directory: created if it does not exist.
        max_bytes: of all segments. Beyond it the oldest are removed, written or not, and counted in `dropped`.
        segment_bytes: of one segment; a smaller limit of all segments makes them smaller.

    Attributes:
        journal: name of the journal, 16 hexadecimal digits.
        next: number of the next record at the start.
        paths: first record and path of each segment, in order.
        sizes: bytes of each segment, by path.
        dropped: records removed before every output had written them.
        torn_bytes: after the last whole record, cut off at the start.
        damages: places with damaged bytes.

    Raises:
        ConfigError: the directory cannot be used, or another collector uses it.
    """

    def __init__(self, directory: str, max_bytes: int, segment_bytes: int) -> None:
        self.directory = directory
        self.dropped = self.torn_bytes = self.damages = 0
        self.paths: list[tuple[int, str]] = []
        self.sizes: dict[str, int] = {}
        self.journal = secrets.token_hex(8)
        self._most_segment_bytes = segment_bytes
        self.limit(max_bytes)
        self._lock_descriptor = -1
        self._writer: LogWriter | None = None
        self._senders_from = 0  # first record of the earliest segment needed to restore the senders
        self._lock = threading.Lock()  # of the damages
        self._damages: set[tuple[str, int]] = set()  # path and offset of each logged one
        try:
            self.next = self._open()
        except BaseException as err:
            self.close()
            if isinstance(err, OSError):
                raise _unusable(directory, err) from err
            raise

    def limit(self, max_bytes: int) -> None:
        """Set the limit of all segments."""
        self._max_bytes = max_bytes
        self.segment_bytes = min(self._most_segment_bytes, max_bytes // 8)

    @property
    def size_bytes(self) -> int:
        """Return the size of all segments."""
        return sum(list(self.sizes.values()))

    def _open(self) -> int:
        """Lock the directory and read its content; return the number of the next record."""
        make(self.directory, 0o700)
        self._lock_descriptor = os.open(
            os.path.join(self.directory, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise ConfigError(
                f"journal {self.directory}: another process uses it; stop the other colmet-collector, "
                f"or let --journal-dir name another directory"
            ) from err
        self.paths = segments.list_segments(self.directory)
        for _, path in self.paths:
            if is_later(form := segments.form_of(path), segments.SEGMENT_FORM):
                raise ConfigError(later_form(path, form, segments.SEGMENT_FORM, AWAY))
        name = read_name(self.directory)
        if name:
            self.journal = name
        else:
            if self.paths:  # under another name, its own records would be garbage to it
                self.journal = _name_in(self.paths)
                log.warning("journal: %s was missing, its segments name it: path=%s", NAME_FILE, self.directory)
            text = json.dumps({"form": FORM, "journal": self.journal})
            write_whole(os.path.join(self.directory, NAME_FILE), text.encode())
        self.sizes = {path: os.path.getsize(path) for _, path in self.paths}
        numbers = [first for first, _ in self.paths]
        if self.paths:
            # the rest of a failed write, in the segment before, may go further than the last one
            numbers += [_after(path, self.journal)[0] for _, path in self.paths[-2:-1]]
            numbers.append(self._cut(self.paths[-1][1]))
        # a record's number identifies it in the outputs, so none is assigned twice, even after a loss of segments
        numbers += [position for position, _ in read_positions(self.directory).values()]
        return max(numbers, default=0)

    def _cut(self, path: str) -> int:
        """Cut off the bytes after the last whole record of the last segment; return the next number."""
        if (named := _named(path)) not in ("", self.journal):
            raise ConfigError(f"{path}: of another journal ({named}, this is {self.journal}); move it away")
        after, offset, torn = _after(path, self.journal)
        if torn > 0:
            os.truncate(path, offset)
            self.sizes[path] = offset
            self.torn_bytes = torn
            log.warning("journal: incomplete record cut off: path=%s bytes=%d", path, torn)
        # a process killed before its sync has not acknowledged these records; this one will
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        sync_directory(self.directory)
        return after

    def read_senders(self) -> tuple[bytes, Iterator[bytes]]:
        """Return the last state of the senders, and the messages after it; to be read before the first write."""
        start = len(self.paths)
        senders = b""
        while start > 0 and not senders:
            start -= 1
            senders = _senders_of(self.paths[start][1], self.journal)
        self._senders_from = self.paths[start][0] if senders else 0
        return senders, self._messages(self.paths[start:])

    def _messages(self, paths: Sequence[tuple[int, str]]) -> Iterator[bytes]:
        for _, path in paths:
            with closing(SegmentReader(path, self.journal)) as reader:
                for record in reader.read():
                    if isinstance(record, LogRecord) and record.kind == MESSAGE:
                        yield record.content

    # -- writing --

    @property
    def is_begun(self) -> bool:
        """Return whether the next record goes to a segment with records."""
        return self._writer is not None

    def write(self, number: int, packed: bytes, begins: bool) -> None:
        """Write records and sync them; after a failure of the disk itself, the next ones go to another segment.

        `number` is that of the first message among or after them. If they begin a segment, the state of the senders is
        the first of them.

        Raises:
            OSError: they cannot be written; no part of them stays.
        """
        if self._writer is None or begins:
            self._begin(number, packed)
            if begins:
                self._senders_from = number
        else:
            try:
                self._writer.append(packed, durable=True)
            except OSError as err:
                self._take_back(self._writer, number, err)
                raise
            self.sizes[self.paths[-1][1]] = self._writer.size

    def _begin(self, number: int, packed: bytes) -> None:
        """Begin a segment with these records.

        It appears under its name with all of them: it may replace a segment with only the state of the senders, and
        that must not be lost.
        """
        self._end()
        path = os.path.join(self.directory, segments.segment_name(number))
        new = os.path.join(self.directory, NEW_FILE)
        content = segments.pack_segment(self.journal, number, time.time_ns()) + packed
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        writer = LogWriter(descriptor)
        try:
            writer.append(content, durable=True)
            os.rename(new, path)
            sync_directory(self.directory)
        except OSError:
            writer.close()
            with suppress(FileNotFoundError):
                os.unlink(new)
            raise
        self._writer = writer
        if not self.paths or self.paths[-1][1] != path:
            self.paths = [*self.paths, (number, path)]
        self.sizes[path] = len(content)

    def _take_back(self, writer: LogWriter, number: int, err: OSError) -> None:
        """Cut off the rest of a failed write; end the segment if the disk itself may have failed."""
        try:
            writer.cut()
            # another segment without a record would be the same file
            if err.errno in (errno.ENOSPC, errno.EDQUOT) or self.paths[-1][0] == number:
                return
        except OSError as worse:
            log.warning("journal: cannot cut off a failed write: path=%s cause=%s", self.paths[-1][1], worse.strerror)
        # after a failed fsync the content of the disk is unknown, so the same bytes are written to another segment
        self._end()

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def trim(self, passed: int, keep_from: int) -> None:
        """Remove segments not needed by any output any more, and the oldest ones beyond the limit of size.

        The segment with the latest state of the senders on disk stays, and so do those after it. Some output has not
        written the record `passed`. Records from `keep_from` on, for the repair of an output's file, stay while there
        is room.
        """
        while len(self.paths) > 1 and self.paths[0][0] < self._senders_from:
            (first, path), after = self.paths[0], self.paths[1][0]
            size = self.size_bytes + self.segment_bytes  # the last segment grows
            written = after <= passed
            if not (after <= keep_from or (written and size > KEEP_SHARE * self._max_bytes) or size > self._max_bytes):
                return
            self.paths = self.paths[1:]
            self.sizes.pop(path, None)
            with self._lock:
                self._damages = {damage for damage in self._damages if damage[0] != path}
            try:
                os.unlink(path)
            except OSError as err:
                log.error("journal: cannot remove a segment: path=%s cause=%s", path, err.strerror)
            if not written:
                before, self.dropped = self.dropped, self.dropped + after - max(first, passed)
                if powers_of_ten(self.dropped, before):
                    log.error(
                        "journal: records dropped that an output has not written, as the journal has more than "
                        "--journal-size: path=%s dropped=%d",
                        self.directory,
                        self.dropped,
                    )

    # -- reading --

    def segment_after(self, first: int) -> tuple[int, str] | None:
        """Return the segment after the one starting with this record; None if that is the last."""
        return next((entry for entry in self.paths if entry[0] > first), None)

    def segment_of(self, position: int) -> tuple[int, str] | None:
        """Return the segment with this record, or the first one after it; None if there is none."""
        paths = self.paths
        at = bisect_right([first for first, _ in paths], position)
        return paths[max(at - 1, 0)] if paths else None

    def set_aside(self, reader: SegmentReader, damage: Damage) -> None:
        """Keep a copy of unreadable bytes, log and count them, once."""
        with self._lock:  # another output may find the same ones
            if (reader.path, damage.offset) in self._damages:
                return
            self._damages.add((reader.path, damage.offset))
            self.damages += 1
            count = self.damages
        path = os.path.join(self.directory, ASIDE, f"{os.path.basename(reader.path)}.{damage.offset}")
        cause = "kept"
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with os.scandir(os.path.dirname(path)) as entries:
                kept = [entry.stat(follow_symlinks=False).st_size for entry in entries]
            if len(kept) < MAX_ASIDE_FILES and sum(kept) < MAX_ASIDE_BYTES:
                write_whole(path, reader.content(damage, MAX_ASIDE_BYTES - sum(kept)))
            else:
                cause = "not kept: there is much already"
        except OSError as err:
            cause = f"not kept: {err.strerror}"
        if powers_of_ten(count):
            log.error(
                "journal: damaged, bytes skipped: path=%s offset=%d bytes=%d damaged=%d aside=%s (%s)",
                *(reader.path, damage.offset, damage.size, count, path, cause),
            )

    def close(self) -> None:
        """Close the segment and release the lock; idempotent."""
        self._end()
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


def check_directory(directory: str) -> None:
    """Check that a directory can hold a journal, without writing there; "" is memory; ConfigError if it cannot."""
    if not directory:
        return
    try:
        check_writable(directory, parents=True)
        read_name(directory)
    except OSError as err:
        raise _unusable(directory, err) from err


def _unusable(directory: str, err: OSError) -> ConfigError:
    why = reason_with_remedy(directory, err.strerror)
    return ConfigError(f"journal {directory}: {why}; give --journal-dir a directory that this user can write")


def read_name(directory: str) -> str:
    """Return the name of the journal in a directory; empty without one; ConfigError if the file is malformed."""
    path = os.path.join(directory, NAME_FILE)
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(4096))
        name, form = document["journal"], document["form"]
        if is_later(form, FORM):
            raise ConfigError(later_form(path, form, FORM, AWAY))
        if form != FORM or not isinstance(name, str) or not JOURNAL.fullmatch(name):
            raise ValueError(f"form {form!r}, journal {name!r}")
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise ConfigError(
            f"{path}: not the name of a journal of this version ({err}); move the directory away to start a new journal"
        ) from err
    return name


def read_positions(directory: str) -> dict[str, tuple[int, int]]:
    """Return position and `keep_from` of each output with a state in a journal's directory.

    An unreadable state is skipped; the output itself reports it.
    """
    found = {}
    for entry in sorted(os.listdir(directory)):
        name, suffix = os.path.splitext(entry)
        if suffix == ".json" and entry != NAME_FILE:
            try:
                with open(os.path.join(directory, entry), "rb") as file:
                    state = parse(file.read(MAX_BYTES + 1))
            except (OSError, ValueError):
                continue
            found[name] = state["position"], state["keep_from"]
    return found


def _named(path: str) -> str:
    """Return the journal in a segment's header; empty if the header is damaged."""
    with closing(SegmentReader(path)) as reader:
        return reader.header.journal if reader.header else ""


def _name_in(paths: Sequence[tuple[int, str]]) -> str:
    """Return the journal of the segments; ConfigError if no header is readable, or they name several journals."""
    names = {name for _, path in paths if (name := _named(path))}
    if len(names) != 1:
        raise ConfigError(
            f"{os.path.dirname(paths[0][1])}: {NAME_FILE} is missing, and the segments name {sorted(names) or 'none'}; "
            f"move the directory away to start a new journal"
        )
    return names.pop()


def _after(path: str, journal: str) -> tuple[int, int, int]:
    """Return the number after the last record of a segment, the offset after it, and the bytes beyond."""
    after = 0
    with closing(SegmentReader(path, journal)) as reader:
        for record in reader.read():
            if isinstance(record, LogRecord) and record.kind == MESSAGE:
                after = record.number + 1
        return after, reader.offset, reader.size() - reader.offset


def _senders_of(path: str, journal: str) -> bytes:
    """Return the state of the senders at the start of a segment; empty without one."""
    with closing(SegmentReader(path, journal)) as reader:
        first = next((found for found in reader.read() if isinstance(found, LogRecord)), None)
        return first.content if first is not None and first.kind == SENDERS else b""
