"""Spool of documents: kept on disk until the endpoint has accepted them.

One directory, readable only by its owner, as documents contain names of users:

    TIME-RANDOM.documents  some documents in order, a line each: CRC-32 as 8 hex digits, a blank, the document as JSON;
                           a dash replaces the first digit of a finished one; a later form has its number at the end
                           of the name, as .documents2, and stays
    TIME-RANDOM.done       of older versions: numbers of the finished documents, 4 bytes each, little-endian
    refused.jsonl          the latest documents refused by the endpoint, with time and reason; and refused.jsonl.old
    lock                   locked by the sending run

TIME has 20 digits, ns since the epoch. A file of documents appears whole or not at all, so any number of runs may add
to the directory while one of them sends. A run killed between the endpoint's answer and the dash has one document sent
twice.

This is not a log of records (`common.record_log`): many short runs add to it without a lock, so no file is ever
appended to, none has a torn end, and an administrator can read the lines. Rows for a collector are kept in such a log
(`node.delivery.spool`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union
from zlib import crc32

from colmet.common.errors import is_later, later_form
from colmet.common.runtime.logs import powers_of_ten
from colmet.node.system.host import PrivateDirectory

log = logging.getLogger(__name__)

NAME = re.compile(r"(\d{20})-[0-9a-f]{16}\.documents", re.ASCII)
_ANY_NAME = re.compile(r"\d{20}-[0-9a-f]{16}\.documents(\d{1,9})", re.ASCII)
FORM = 1  # of a file of documents
_TEMPORARY = re.compile(r"\.(\d{20})-[0-9a-f]{16}\.documents\.new", re.ASCII)
LOCK = "lock"
REFUSED = "refused.jsonl"
MAX_DOCUMENT_BYTES = 8 << 20
FILE_BYTES = 256 << 10  # of documents; beyond the limits whole files are dropped
MAX_FILE_BYTES = FILE_BYTES + 2 * MAX_DOCUMENT_BYTES
MAX_FILES = 20_000
MAX_REFUSED_BYTES = 1 << 20
OLD_TEMPORARY_S = 3600.0
_DONE = b"-"
_LINE = re.compile(rb"[^\n]+\n?")
_NUMBER = struct.Struct("<I")


class WaitingDocument(NamedTuple):
    """A document to send."""

    file: str  # name of its file; empty for a document in memory
    place: int  # of its line in the file, in bytes; of a document in memory, its number
    text: bytes  # JSON, without the token


class DocumentMemory:
    """Documents in memory."""

    def __init__(self) -> None:
        self._entries: dict[int, WaitingDocument] = {}
        self._coming = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, texts: Sequence[bytes]) -> None:
        """Add documents."""
        for text in texts:
            self._entries[self._coming] = WaitingDocument("", self._coming, text)
            self._coming += 1

    def entries(self, newest_first: bool = False) -> Iterator[WaitingDocument]:
        """Yield each unfinished document, the oldest or the newest first."""
        for number in sorted(self._entries, reverse=newest_first):
            if number in self._entries:
                yield self._entries[number]

    def done(self, entry: WaitingDocument) -> None:
        """Mark a document as sent."""
        self._entries.pop(entry.place, None)

    def refuse(self, entry: WaitingDocument, _reason: str) -> None:
        """Mark a document as refused, so that it is not sent again."""
        self.done(entry)


class _OpenDirectory(PrivateDirectory):
    """A private directory with files to change in place."""

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of a file, open for writing."""
        return os.open(name, flags | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)


class _DocumentFile:
    """A file of documents: its size, and the places of the unfinished ones."""

    def __init__(self, name: str, size: int, waiting: set[int]) -> None:
        self.name = name
        self.time_ns = int(name[:20])
        self.size = size
        self.waiting = waiting


def pack(texts: Sequence[bytes]) -> bytes:
    """Return the content of a file with these documents."""
    return b"".join([b"%08x %s\n" % (crc32(text), text) for text in texts])


def unpack(data: bytes) -> dict[int, bytes | None]:
    """Return the unfinished documents of a file by the places of their lines; None for a damaged one."""
    found: dict[int, bytes | None] = {}
    for match in _LINE.finditer(data):
        line, text = match[0], match[0][9:-1]
        if not line.startswith(_DONE):
            found[match.start()] = text if line == b"%08x %s\n" % (crc32(text), text) else None
    return found


def pieces(texts: Sequence[bytes], most_bytes: int) -> Iterator[Sequence[bytes]]:
    """Yield documents in order, in lots of `most_bytes`; a larger document is a lot of its own."""
    start = size = 0
    for end, text in enumerate(texts):
        if size and size + len(text) > most_bytes:
            yield texts[start:end]
            start, size = end, 0
        size += len(text) + 10
    if start < len(texts):
        yield texts[start:]


class DocumentSpool:
    """The directory of documents. `put` requires no lock; all other methods require it, see `acquire`.

    Args:
        path: of the directory; created if it does not exist, for its owner alone.
        max_bytes: limit of all documents; beyond it the oldest files are dropped.
        max_age_s: limit of a document's age.
        now_ns: the wall clock.

    Raises:
        OSError: the directory cannot be used.

    Attributes:
        dropped: documents dropped beyond the limits of size and age.
        damaged: documents with a wrong checksum.
        unread: failed reads of files.
        failures: failed writes.
    """

    def __init__(
        self,
        path: str,
        max_bytes: int = 64 << 20,
        max_age_s: float = 7 * 86400.0,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path
        self.dropped = self.damaged = self.unread = self.failures = 0
        self._max_bytes = max_bytes
        self._max_age_ns = int(max_age_s * 1e9)
        self._now_ns = now_ns
        self._file_bytes = min(FILE_BYTES, max_bytes // 8)
        self._files: dict[str, _DocumentFile] = {}  # ascending
        self._later: list[str] = []  # files of a later version; reported
        self._is_locked = False
        os.makedirs(os.path.dirname(path) or "/", 0o700, exist_ok=True)
        self._directory = _OpenDirectory(path)

    # -- for every run --

    def put(self, texts: Sequence[bytes]) -> int:
        """Write documents, JSON of one line, in order; return how many of them are on disk now."""
        written = 0
        time_ns = self._now_ns()
        for number, lot in enumerate(pieces(texts, self._file_bytes)):
            name = f"{time_ns + number:020d}-{secrets.token_hex(8)}.documents"
            data = pack(lot)
            try:
                self._directory.write(name, data, durable=True)
            except OSError as err:
                self._note_failure(err)
                break
            written += len(lot)
            if self._is_locked:
                self._files[name] = _DocumentFile(name, len(data), set(unpack(data)))
        return written

    def _note_failure(self, err: OSError) -> None:
        self.failures += 1
        if powers_of_ten(self.failures):
            log.error("spool of documents cannot be written to failures=%d %s: %s", self.failures, self.path, err)

    def acquire(self) -> bool:
        """Lock the directory and read its files; return False if another run has the lock."""
        if not self._is_locked:
            try:
                self._directory.lock(LOCK)
            except BlockingIOError:
                return False
            self._is_locked = True
        self._load()
        return True

    def release(self) -> None:
        """Release the lock; also twice."""
        self._files.clear()
        self._directory.unlock()
        self._is_locked = False

    def close(self) -> None:
        """Release the lock and close the directory; also twice."""
        self.release()
        self._directory.close()

    # -- with the lock --

    def _load(self) -> None:
        self._files.clear()
        names = sorted(self._directory.names())
        for name in names:
            if NAME.fullmatch(name) and (file := self._look(name)) is not None:
                self._files[name] = file
        self._report_later(names)
        now_ns = self._now_ns()
        for name in names:
            stem, _, suffix = name.rpartition(".")
            temporary = _TEMPORARY.fullmatch(name)
            if (suffix == "done" and f"{stem}.documents" not in names) or (
                temporary is not None and now_ns - int(temporary[1]) > OLD_TEMPORARY_S * 1e9
            ):
                self._remove(name)

    def _report_later(self, names: Sequence[str]) -> None:
        """Log the files of a later version, once: they stay."""
        forms = {match[0]: int(match[1]) for match in map(_ANY_NAME.fullmatch, names) if match}
        later = [name for name, form in forms.items() if is_later(form, FORM)]
        if later and later != self._later:
            text = later_form(f"{self.path}/{later[0]}", forms[later[0]], FORM, "remove it: its documents are not sent")
            log.error("spool of documents: a later version is needed files=%d: %s", len(later), text)
        self._later = later

    def _look(self, name: str) -> _DocumentFile | None:
        try:
            data = self._directory.read(name, MAX_FILE_BYTES)
            notes = self._notes(name)
        except FileNotFoundError:
            return None
        except OSError as err:
            self._note_unread(name, err)
            return None
        texts = unpack(data)
        places = [match.start() for match in _LINE.finditer(data)] if notes else []
        noted = {places[number] for number in notes if number < len(places)}
        bad = {place for place, text in texts.items() if text is None} - noted
        file = _DocumentFile(name, len(data), set(texts) - noted - bad)
        if bad:
            self._note_damage(name, len(bad), "its checksum does not hold")
        if not file.waiting:
            self._remove_file(file)
            return None
        for place in bad:  # each is counted once
            self._mark(name, place)
        return file

    def _notes(self, name: str) -> list[int]:
        """Return the numbers of the documents noted as finished by an older version."""
        try:
            data = self._directory.read(_done(name), 16 << 20)
        except FileNotFoundError:
            return []
        whole = data[: len(data) - len(data) % _NUMBER.size]  # the last note may have been torn
        return [number for (number,) in _NUMBER.iter_unpack(whole)]

    def _note_unread(self, name: str, err: OSError) -> None:
        self.unread += 1
        if powers_of_ten(self.unread):
            log.error("documents cannot be read, they stay file=%s/%s unread=%d: %s", self.path, name, self.unread, err)

    def _note_damage(self, name: str, count: int, why: str) -> None:
        before, self.damaged = self.damaged, self.damaged + count
        if powers_of_ten(self.damaged, before):
            log.error("spool of documents is damaged file=%s/%s damaged=%d: %s", self.path, name, self.damaged, why)

    def __len__(self) -> int:
        return sum([len(file.waiting) for file in self._files.values()])

    @property
    def size_bytes(self) -> int:
        """Return the size of all files of documents."""
        return sum([file.size for file in self._files.values()])

    def drop_beyond(self) -> int:
        """Drop the oldest files beyond the limits of size and age; return the number of documents dropped."""
        dropped = 0
        size, too_old_ns = self.size_bytes, self._now_ns() - self._max_age_ns
        count = len(self._files)
        for file in list(self._files.values()):
            if file.time_ns >= too_old_ns and size <= self._max_bytes and count <= MAX_FILES:
                break
            dropped += len(file.waiting)
            size -= file.size
            count -= 1
            self._remove_file(file)
        self.dropped += dropped
        if dropped:
            log.error("unsent documents dropped dropped=%d: beyond --spool-size or --spool-age", dropped)
        return dropped

    def entries(self, newest_first: bool = False) -> Iterator[WaitingDocument]:
        """Yield every document to send, the oldest or the newest first; without documents added meanwhile."""
        names = list(self._files)
        for name in reversed(names) if newest_first else names:
            file = self._files.get(name)
            if file is None:
                continue
            try:
                texts = list(unpack(self._directory.read(name, MAX_FILE_BYTES)).items())
            except OSError as err:
                self._note_unread(name, err)
                continue
            for place, text in reversed(texts) if newest_first else texts:
                if text is not None and place in file.waiting:
                    yield WaitingDocument(name, place, text)

    def done(self, entry: WaitingDocument) -> None:
        """Mark a document as sent."""
        file = self._files.get(entry.file)
        if file is None or entry.place not in file.waiting:
            return
        file.waiting.remove(entry.place)
        if file.waiting:
            self._mark(file.name, entry.place)
        else:
            self._remove_file(file)

    def _mark(self, name: str, place: int) -> None:
        """Mark a line of a file as finished."""
        try:
            fd = self._directory.open(name, 0)
            try:
                os.pwrite(fd, _DONE, place)
            finally:
                os.close(fd)
        except OSError as err:  # it is sent again by the next run
            self._note_failure(err)

    def _remove_file(self, file: _DocumentFile) -> None:
        self._files.pop(file.name, None)
        self._remove(file.name)
        self._remove(_done(file.name))

    def _remove(self, name: str) -> None:
        try:
            self._directory.remove(name)
        except FileNotFoundError:
            pass
        except OSError as err:
            self._note_failure(err)

    def refuse(self, entry: WaitingDocument, reason: str) -> None:
        """Mark a document as refused; keep it in refused.jsonl with the reason, within the size limit."""
        line = b'{"time": %d, "reason": %s, "document": %s}\n' % (
            self._now_ns() // 10**9,
            json.dumps(reason).encode(),
            entry.text,
        )
        try:
            fd = self._directory.open(REFUSED, os.O_APPEND | os.O_CREAT)
            try:
                if os.fstat(fd).st_size + len(line) > MAX_REFUSED_BYTES:
                    self._directory.rename(REFUSED, f"{REFUSED}.old")
                    os.close(fd)
                    fd = self._directory.open(REFUSED, os.O_APPEND | os.O_CREAT)
                if len(line) <= MAX_REFUSED_BYTES:
                    os.write(fd, line)
            finally:
                os.close(fd)
        except OSError as err:
            self._note_failure(err)
        self.done(entry)


def _done(name: str) -> str:
    return f"{name[: -len('documents')]}done"


DocumentStore = Union[DocumentSpool, DocumentMemory]
