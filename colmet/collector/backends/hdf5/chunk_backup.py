"""Backup of the last chunks of tables, beside an HDF5 file, while a burst rewrites these chunks.

HDF5 moves a growing compressed chunk, and reuses its old place before the file's index has the new one. After a kill
the index still points to the old place, now with other data.

Source: own; for each table the lengths of its name and of its deflated rows, and these. The checksums in the checkpoint
tell whether rows are whole.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import BinaryIO

from colmet.common.host.files import sync_directory

HEAD = struct.Struct("<II")  # bytes of the name, bytes of the deflated rows
MAX_ROWS_BYTES = 256 << 20  # of one table


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
