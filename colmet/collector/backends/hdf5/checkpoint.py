"""State of the output's file: what a killed burst has to be undone to.

The row counts are saved with the position in the journal. The last chunks of tables, which a burst rewrites, have a
backup beside the file: HDF5 moves a growing compressed chunk, and reuses its old place before the file's index has the
new one. After a kill the index still points to the old place, now with other data.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from colmet.collector.journal.output_state import MAX_BYTES, OutputState, parse
from colmet.common.host.files import sync_directory

log = logging.getLogger(__name__)

# Path of a table -> its row count before the burst; None for a table created by it.
Undo = Mapping[str, "int | None"]
# Path of a table -> checksum of the rows in its last chunk, if HDF5 rewrites that chunk (see chunk_backup.py).
Tails = Mapping[str, int]
HEAD = struct.Struct("<II")  # bytes of the name, bytes of the deflated rows
MAX_ROWS_BYTES = 256 << 20  # of one table


class Checkpoint(NamedTuple):
    """The file and its current burst. Field names are those of the saved JSON."""

    file: str = ""  # path of the current file; empty at first
    inode: int = 0  # of the file; 0 if it is not created yet
    first: int = 0  # number of the first record whose rows went to the file: the journal keeps records from here on
    tables: int | None = None  # number of its tables, without those created by the burst; None if not counted
    undo: Mapping[str, int | None] = {}
    tails: Mapping[str, int] = {}
    boot: str = ""  # boot id of the machine at the opening of the file; empty once it is closed
    aside: str = ""  # where the torn file goes that was at this path; empty once that is done

    @classmethod
    def parse(cls, notes: Mapping[str, Any]) -> Checkpoint:
        """Return the saved checkpoint; ValueError if the notes have another form."""
        try:
            read = cls(**notes)
        except TypeError as err:
            raise ValueError(str(err)) from err
        if not all(type(value) is type(default) for value, default in zip(read._replace(tables=None), cls())):
            raise ValueError("a value of another type")
        counts = [read.tables, *read.undo.values()]
        counts = [read.inode, read.first, *read.tails.values(), *[n for n in counts if n is not None]]
        if not all(type(n) is int and n >= 0 for n in counts) or (read.file and not os.path.isabs(read.file)):
            raise ValueError("a number of another type, or a relative path")
        return read

    @classmethod
    def load(cls, state: OutputState) -> Checkpoint:
        """Return the saved checkpoint, or an empty one if it is invalid."""
        try:
            return cls.parse(state.notes)
        except ValueError as err:
            log.error("state of the file is invalid and not used: cause=%s", err)
            return cls()

    def save(self, state: OutputState, position: int) -> None:
        """Save this checkpoint with a journal position; the journal keeps the records that fill a new file."""
        state.save(position, self._asdict(), self.first)


def last_file(journal_dir: str, output: str) -> str:
    """Return the file last written by an output (replaced by it if torn); "" if unknown."""
    try:
        with open(os.path.join(journal_dir, f"{output}.json"), "rb") as file:
            return Checkpoint.parse(parse(file.read(MAX_BYTES + 1))["notes"]).file
    except (OSError, ValueError):
        return ""


def boot_id() -> str:
    """Return the id of the machine's current boot; "" if the kernel does not provide it.

    Source: /proc/sys/kernel/random/boot_id.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).decode().strip()
    except OSError:
        return ""


def tails_path(path: str) -> str:
    """Return the path of the backup of an HDF5 file."""
    return f"{path}.tails"


class TailWriter:
    """Writer of a backup: synced to disk at the end of the `with` block, it replaces the former one."""

    def __init__(self, path: str) -> None:
        self._path = tails_path(path)
        self._file: BinaryIO | None = None
        self.checksums: dict[str, int] = {}

    def __enter__(self) -> TailWriter:
        return self

    def add(self, name: str, rows: bytes) -> None:
        """Add the rows of one table; OSError if they cannot be written."""
        if self._file is None:
            is_new = not os.path.lexists(self._path)
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed by __exit__
            if is_new:
                sync_directory(os.path.dirname(self._path))
        packed, label = zlib.compress(rows, 1), name.encode()
        self._file.write(HEAD.pack(len(label), len(packed)) + label + packed)
        self.checksums[name] = zlib.crc32(rows)

    def __exit__(
        self, _kind: type[BaseException] | None, err: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with self._file as file:
            if err is None:
                file.flush()
                os.fsync(file.fileno())


class KeptTails:
    """Reader of a backup, limited to tables with known checksums, by table."""

    def __init__(self, path: str, checksums: Mapping[str, int]) -> None:
        self._path = tails_path(path)
        self._checksums = checksums
        self._places: dict[str, tuple[int, int]] = {}
        if not checksums or not os.path.lexists(self._path):
            return
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while len(head := file.read(HEAD.size)) == HEAD.size:
                label_bytes, packed_bytes = HEAD.unpack(head)
                if label_bytes + packed_bytes > size - file.tell():
                    return
                name = file.read(label_bytes).decode(errors="replace")
                if name in checksums:
                    self._places[name] = file.tell(), packed_bytes
                file.seek(packed_bytes, os.SEEK_CUR)

    def get(self, name: str) -> bytes | None:
        """Return the rows of a table; None if the backup lacks them or their checksum differs."""
        place = self._places.get(name)
        if place is None:
            return None
        with open(self._path, "rb") as file:
            file.seek(place[0])
            packed = file.read(place[1])
        try:
            rows = zlib.decompressobj().decompress(packed, MAX_ROWS_BYTES)
        except zlib.error:
            return None
        return rows if zlib.crc32(rows) == self._checksums[name] else None


def remove_tails(path: str) -> None:
    """Remove the backup of an HDF5 file."""
    if os.path.lexists(tails_path(path)):
        os.unlink(tails_path(path))
