"""One HDF5 file for appending rows: its lock, its space, its bursts, and their undoing.

A burst is `plan`, `make_tables`, any number of `append`, `flush` and `sync`; `undo` takes it back. Between bursts the
file is complete on disk: other programs can open it, and a kill harms nothing.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from colmet.collector.backends.hdf5.check import has_tail
from colmet.collector.backends.hdf5.checkpoint import KeptTails, Tails, TailWriter, Undo, remove_tails
from colmet.collector.backends.hdf5.h5table import REBUILT, REPLACED, Damaged, growth, reading, table_names, temporary
from colmet.collector.backends.hdf5.job_tables import JobTables, Piece
from colmet.collector.backends.hdf5.libhdf5 import LibraryFile
from colmet.collector.backends.hdf5.library import (
    STORAGE_ERRORS,
    cause,
    close_library,
    is_of_system,
    open_library,
    opened_library,
    tables,
)
from colmet.collector.columns import RowsByJob, involved_jobs
from colmet.common.errors import ColmetError, ConfigError, OutputUnavailable
from colmet.common.host.files import reason_with_remedy, sync_directory

log = logging.getLogger(__name__)

# HDF5 does not survive a full disk: if it cannot write its own structures, the file becomes unreadable. So space is
# reserved in the file system first: for rows, for the headers of new tables, and this for the rest.
SPARE_BYTES = 256 << 10
_BUSY = re.compile(rf"unable to lock file.*errno = ({errno.EAGAIN}|{errno.EACCES}),")


def lock(path: str) -> int:
    """Lock a file against other writers, which would damage it; return its descriptor: closing it ends the lock.

    It is an open file description lock. HDF5 uses another kind, so readers with default settings are not blocked.
    Closing other descriptors of this process does not release it.

    Raises:
        ConfigError: another process has locked the file.
        OSError: the file cannot be opened for writing.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # struct flock: type, whence, start, length (0: to the end), pid
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError) as err:
        os.close(descriptor)
        raise ConfigError(
            f"{path}: another process writes to it; stop the other colmet-collector or change --hdf5-filepath"
        ) from err
    except OSError as err:  # a file system without such locks
        log.info("file cannot be locked: path=%s cause=%s", path, err.strerror)
    return descriptor


def promise(descriptor: int, start: int, size: int) -> None:
    """Reserve space in the file system for `size` bytes of a file from `start` on.

    Raises:
        OSError: the disk has less space; the file is unchanged.
    """
    length = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, start, size)
    except OSError as err:
        os.ftruncate(descriptor, length)  # some file systems keep a partial reservation
        if err.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        disk = os.fstatvfs(descriptor)  # fallback: free space is checked, but not reserved
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from err


def _blocks(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Yield groups of adjacent pieces for conversion in one step."""
    block: list[Piece] = []
    for piece in pieces:
        if block and (
            piece.layout is not block[0].layout
            or piece.first != block[-1].last
            or piece.last - block[0].first > piece.layout.capacity
        ):
            yield block
            block = []
        block.append(piece)
    if block:
        yield block


class Hdf5File:
    """HDF5 file being written.

    Attributes:
        created: whether `open` created it.
        jobs: its tables; None unless it is open.
    """

    def __init__(self, path: str, filters: Any) -> None:
        self.path = path
        self.created = False
        self.jobs: JobTables | None = None
        self._filters = filters
        self._file: LibraryFile | None = None
        self._lock = -1

    # -- the file --

    @property
    def is_open(self) -> bool:
        """Return whether rows can be appended."""
        return self._file is not None

    @property
    def size_bytes(self) -> int:
        """Return the file size in bytes."""
        return self._library.size_bytes

    @property
    def _library(self) -> LibraryFile:
        assert self._file is not None  # open
        return self._file

    @property
    def _tables(self) -> JobTables:
        assert self.jobs is not None  # open
        return self.jobs

    @property
    def inode(self) -> int:
        """Return the inode number, to recognise another file at the same path."""
        return os.fstat(self._lock).st_ino

    def lock(self) -> None:
        """Lock the file against other writers, with the errors of `lock`."""
        if self._lock < 0:
            self._lock = lock(self.path)

    def open(self) -> None:
        """Open or create the file, and try to write to it.

        Raises:
            ConfigError: the file cannot be created or opened; nothing is left behind.
            OutputUnavailable: a reader has locked it.
            Damaged: the library does not recognise it as HDF5, or cannot open it.
        """
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            raise ConfigError(f"{self.path}: directory {directory} does not exist; create it or change --hdf5-filepath")
        self.created = not os.path.lexists(self.path)
        try:
            if self.created:
                self._create()
            with open(self.path, "r+b"):  # the system's errors are clearer than those of HDF5
                pass
            if not tables.is_hdf5_file(self.path):
                raise Damaged(f"{self.path}: exists and is not an HDF5 file")
            self.lock()
            self._file = LibraryFile(self.path)
            self.jobs = JobTables(self.path, self._file, self._filters, self._reserve, self._write_out)
            with opened_library(self.path, "r+"):  # PyTables checks the version of its format
                self.flush()
        except ColmetError:
            self.close(keep_tails=True)
            raise
        except Exception as err:  # on a damaged file, PyTables raises anything
            self.close(keep_tails=True)
            if _BUSY.search(str(err)):
                raise OutputUnavailable(f"{self.path} is held open by a reader; waiting until that closes it") from err
            if not is_of_system(err):
                raise Damaged(f"{self.path}: cannot be opened for writing: {cause(err)}") from err
            raise ConfigError(
                f"{self.path}: cannot be opened for writing: {reason_with_remedy(self.path, cause(err))}; "
                f"check its owner, rights and disk, or change --hdf5-filepath"
            ) from err
        if self.created:
            self._tables.count = 0

    def _create(self) -> None:
        new = f"{self.path}.new"
        try:
            with open(new, "wb") as file:
                promise(file.fileno(), 0, SPARE_BYTES)
            close_library(open_library(new, "w"))
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.rename(new, self.path)
            sync_directory(os.path.dirname(self.path))
        except STORAGE_ERRORS:
            if os.path.lexists(new):
                os.unlink(new)
            raise

    def close(self, keep_tails: bool = False) -> bool:
        """Complete the file on disk and close it; return whether both succeeded.

        A later rollback needs the backup of the last chunks, which `keep_tails` keeps.
        """
        clean = True
        file, self._file = self._file, None
        jobs, self.jobs = self.jobs, None
        if file is not None:
            for step in (*([jobs.close] if jobs is not None else []), file.close, self.sync):
                try:
                    step()
                except Exception as err:  # noqa: BLE001 - after a failure of HDF5, PyTables raises anything
                    log.warning("file not closed cleanly: path=%s cause=%s", self.path, cause(err))
                    clean = False
            try:
                if clean and not keep_tails:
                    remove_tails(self.path)
            except OSError as err:
                log.warning("file not closed cleanly: path=%s cause=%s", self.path, cause(err))
                clean = False
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        return clean

    def was_moved(self) -> bool:
        """Return whether the open file was moved or removed from its path; OSError if unknown."""
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return not os.path.samestat(there, os.fstat(self._lock))

    def flush(self) -> None:
        """Write HDF5's own structures to the file, or raise the failure; rows are already there."""
        self._library.flush()
        os.ftruncate(self._lock, self.size_bytes)  # release unused reserved space

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._lock)

    def count(self) -> None:
        """Count the tables once, at 0.2 ms per job; Damaged if they cannot be listed."""
        if self._tables.count is not None:
            return
        with reading(self.path), opened_library(self.path, "r+") as file:
            self._tables.count = sum(1 for _ in table_names(file))

    # -- a burst --

    def plan(self, parts: Iterable[RowsByJob]) -> tuple[dict[str, int | None], dict[str, int]]:
        """Return the row counts of the tables touched by a burst, and the checksums of their last chunks."""
        self._tables.begin_burst()
        undo: dict[str, int | None] = {}
        with TailWriter(self.path) as tails:
            for part in parts:
                for path, table in self._tables.of_part(part):
                    undo[path] = None if table is None else table.rows
                    if table is not None and table.form.is_filtered and (rest := table.rows % table.form.chunk_rows):
                        tails.add(path, table.read(table.rows - rest, table.rows).tobytes())
        return undo, tails.checksums

    def make_tables(self, parts: Iterable[RowsByJob], undo: Undo) -> None:
        """Make the tables that a burst lacks."""
        if None in undo.values():
            self._tables.make(parts, undo)

    def append(self, part: RowsByJob) -> None:
        """Convert the rows of one schema and append them to their jobs' tables."""
        batch = part.batch
        hosts = np.array([host.encode() for host in batch.hosts], dtype="S")
        involved = involved_jobs(batch)
        for block in _blocks(self._tables.pieces(batch.schema, part.jobs, part.starts)):
            self._reserve(sum([piece.table.growth(piece.last - piece.first) for piece in block]))
            start = block[0].first
            rows = block[0].layout.fill(batch, part.order[start : block[-1].last], hosts, involved)
            for table, _, first, last in block:
                table.append(rows[first - start : last - start])

    def _reserve(self, size: int) -> None:
        """Reserve space in the file system for `size` bytes and the burst's headers, or raise OSError."""
        # the last blocks of the file may be holes: allocated by HDF5, but not written yet
        start = max(0, self.size_bytes - SPARE_BYTES)
        promise(self._lock, start, SPARE_BYTES + size + self._tables.header_bytes + SPARE_BYTES)

    def drop_replaced(self) -> None:
        """Remove former tables, after the commit of the burst only, as HDF5 reuses their space."""
        with opened_library(self.path, "r+") as file:
            for path in self._tables.replaced:
                file.remove_node(path)
        self._tables.replaced.clear()
        self._write_out()

    def _write_out(self) -> None:
        self.flush()
        self.sync()

    # -- its undoing --

    def undo(self, undo: Undo, tails: Tails) -> None:
        """Truncate tables to their previous rows, and remove tables created since.

        Raises:
            Damaged: a table has fewer rows than before, or different ones.
            Exception: after a failure of HDF5, PyTables raises anything.
        """
        self._tables.forget()
        kept = KeptTails(self.path, tails)
        with opened_library(self.path, "r+") as file:
            for path, rows in undo.items():
                _settle(file, path)
                if rows is None:
                    _remove(file, path)
                    continue
                table = file.get_node(path) if path in file else None
                if table is None or table.nrows < rows:
                    raise Damaged(f"{self.path}: {path} has fewer than the {rows} rows that were written")
                last = rows - rows % int(table.chunkshape[0])
                if path in tails and not has_tail(self._library.find(path.encode()), last, rows, tails[path]):
                    self._mend(table, last, rows, kept.get(path))
                elif table.nrows > rows:
                    table.truncate(rows)
        self.count()
        self._write_out()

    def _mend(self, table: Any, last: int, rows: int, tail: bytes | None) -> None:
        if tail is None:
            raise Damaged(f"{self.path}: the last rows of {table._v_pathname} are others than those written")
        table.truncate(last)
        self._reserve(growth(table, rows - last))
        table.append(np.frombuffer(tail, table.dtype))


def _settle(file: Any, path: str) -> None:
    """Undo the rebuild of a table: its former version is unchanged."""
    rebuilt, replaced = temporary(path, REBUILT), temporary(path, REPLACED)
    if rebuilt in file:
        file.remove_node(rebuilt)
    if replaced in file:
        if path in file:
            file.remove_node(path)
        file.rename_node(replaced, path.rsplit("/", 1)[1])


def _remove(file: Any, path: str) -> None:
    group = path.rsplit("/", 1)[0]
    if path in file:
        file.remove_node(path)
    if group in file and file.get_node(group)._v_nchildren == 0:
        file.remove_node(group)
