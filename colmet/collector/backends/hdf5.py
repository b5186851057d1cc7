"""Output to HDF5: one group for each job, one table for each kind of metric, as Colmet 0.6 wrote them.

A burst (one `Hdf5Output.write`) ends with a flush, and the file is complete on disk until the next one starts: other
programs can open it meanwhile, and a kill between bursts harms nothing.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import logging
import os
import re
import struct
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# HDF5 locks a file that it opens, so that other programs that use their defaults could not open the live one. HDF5
# reads this when it is loaded, so it is set before PyTables is imported; who sets it otherwise is obeyed.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
import tables

from colmet.collector.backend import OutputBackend
from colmet.collector.columns import Layout, columns_of, file_columns, grown, involved_jobs, missing
from colmet.collector.joined import Joined, join
from colmet.common.cli import Options
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Schema

log = logging.getLogger(__name__)

SUFFIX = ".hdf5"
BACKEND_VERSION = 2  # attribute of every table, as in 0.6's files
COMPLIBS = ("zlib", "lzo", "bzip2", "blosc")


# An open table takes 0.05 to 0.2 MB here, opening one again 3 ms; most sites run fewer jobs than this at a time.
MAX_HANDLES = 1024
# Jobs whose rows are converted together; their tables stay open meanwhile, so it is well below MAX_HANDLES.
MAX_BLOCK_JOBS = 256
MAX_LAYOUTS = 64  # each has a block
COPY_BYTES = 4 << 20  # of a table that is rebuilt, at a time
# HDF5 does not survive a full disk: what it cannot write of its own structures is a file that nobody can read. So the
# file system has to promise the space first: for rows, for the description of new tables, and this for the rest.
SPARE_BYTES = 256 << 10
NODE_BYTES = 4096  # of the index of a table's chunks, of which a new chunk may need another one
MAX_WARNINGS = 1000
MAX_REBUILDS = 16  # of one table, while a file is open; a site has a few versions of Colmet at a time

# No chunk cache: rows go to the file within `append`, where PyTables notices that they cannot, and a handle keeps no
# chunk (64 to 128 kB). As each burst ends with a flush, a cache would save nothing: 100 rows a table and burst take
# 7 % less CPU time without one, or 2 % more when the chunk that is being filled has to be uncompressed first.
CHUNK_CACHE_BYTES = 0

_STORAGE_ERRORS = (
    OSError,
    tables.HDF5ExtError,
    tables.NodeError,
    tables.ClosedNodeError,
    tables.ClosedFileError,
    tables.FileModeError,
)
_ERRNO_TEXT = re.compile(r"error message = '([^']+)'")


def cause(err: BaseException) -> str:
    """One line for a failure: what the system said, from within HDF5's back trace where there is one."""
    text = str(err)
    found = _ERRNO_TEXT.search(text)
    if found:
        return found.group(1)
    if isinstance(err, OSError) and err.strerror:
        return err.strerror
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(err).__name__


def column(dtype: np.dtype[Any], position: int, default: Any = None) -> Any:
    """PyTables' description of a column."""
    return tables.Col.from_dtype(dtype, dflt=missing(dtype) if default is None else default, pos=position)


class _Handle:
    """An open table, and how the rows that it took last are laid out in it."""

    __slots__ = ("digest", "layout", "table")

    def __init__(self, table: Any) -> None:
        self.table = table
        self.digest = b""
        self.layout: Layout | None = None


def chunk_bytes(table: Any, count: int) -> int:
    """By how much a file grows at most for the chunks that `count` more rows of a table need."""
    chunk_rows = int(table.chunkshape[0])
    rows = int(table.nrows)
    # a compressed chunk that is not full is written anew, elsewhere
    full = rows // chunk_rows if table.filters.complevel else -(-rows // chunk_rows)
    chunks = -(-(rows + count) // chunk_rows) - full
    return chunks * chunk_rows * int(table.dtype.itemsize) + NODE_BYTES


def header_bytes(columns: int, row_bytes: int) -> int:
    """What HDF5 and PyTables write at most to describe a table, its group and its chunks; measured, then doubled."""
    return 4096 + 512 * columns + 3 * row_bytes


def promise(descriptor: int, start: int, size: int) -> None:
    """Have the file system set space aside for `size` bytes of a file from `start` on.

    Raises:
        OSError: it has not got that much; the file is as it was.
    """
    length = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, start, size)
    except OSError as err:
        os.ftruncate(descriptor, length)  # some file systems keep what they got
        if err.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        disk = os.fstatvfs(descriptor)  # the next best: nothing is promised, others may take it
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from err


class _Piece(NamedTuple):
    """Rows `first` to `last`, in the order by job, which go to one table."""

    table: Any
    layout: Layout
    first: int
    last: int


def _blocks(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces that follow each other and can be converted together."""
    block: list[_Piece] = []
    for piece in pieces:
        if block and (
            piece.layout is not block[0].layout
            or piece.first != block[-1].last
            or piece.last - block[0].first > piece.layout.capacity
            or len(block) == MAX_BLOCK_JOBS
        ):
            yield block
            block = []
        block.append(piece)
    if block:
        yield block


def group_path(job: int) -> str:
    """Where the tables of a job are."""
    return f"/job_{job}"


class Hdf5Output(OutputBackend):
    """Writes each row to the table of its job and kind, in bulk.

    Args:
        path: the file, where it ends in ``.hdf5``; otherwise files are ``<path>.<epoch seconds>.hdf5``, named when
            they are opened.
        complevel: 0 (none) to 9, for tables that are created.
        complib: one of `COMPLIBS`.

    Attributes:
        path: the file that is open, or was last.
        values_left_out: values that were not written, as the table in the file has their column with another kind of
            value, or as there are more columns than HDF5 can describe.
        rows_left_out: rows that were not written, as something else than a table has their table's name.
    """

    name = "hdf5"

    def __init__(self, path: str, complevel: int = 0, complib: str = "zlib") -> None:
        self._configured = path
        self._filters = tables.Filters(complevel=complevel, complib=complib)
        self._file: Any = None
        self._lock = -1
        self._rebuilds: dict[str, int] = {}
        self._handles: OrderedDict[tuple[int, str], _Handle | None] = OrderedDict()
        self._layouts: OrderedDict[tuple[bytes, np.dtype[Any]], Layout] = OrderedDict()
        # Path of a table -> its rows before the burst, None if it was created by it. Emptied when the burst is done;
        # kept when it failed and could not be taken back at once.
        self._undo: dict[str, int | None] = {}
        self._burst_left_out = [0, 0]
        self._burst_header_bytes = 0
        self._warned: set[tuple[str, str]] = set()
        self.path = ""
        self.values_left_out = 0
        self.rows_left_out = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare --hdf5-filepath, --hdf5-complevel and --hdf5-complib."""
        parser.add_argument(
            "--hdf5-filepath",
            metavar="PATH",
            help="write to this file if it ends in .hdf5, else to PATH.<epoch seconds>.hdf5 (SIGHUP starts the next)",
        )
        parser.add_argument(
            "--hdf5-complevel",
            metavar="0-9",
            type=int,
            choices=range(10),
            default=0,
            help="compression level (default: %(default)s, none)",
        )
        parser.add_argument(
            "--hdf5-complib",
            choices=COMPLIBS,
            default="zlib",
            help="compression library (default: %(default)s)",
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Hdf5Output | None:
        """The output, or None without --hdf5-filepath; ConfigError where PyTables lacks the compression library."""
        if options.hdf5_filepath is None:
            return None
        if not options.hdf5_filepath:
            raise ConfigError("--hdf5-filepath is empty; give a path, e.g. /var/lib/colmet/cluster")
        if tables.which_lib_version(options.hdf5_complib) is None:
            there = ", ".join([lib for lib in COMPLIBS if tables.which_lib_version(lib) is not None])
            raise ConfigError(
                f"--hdf5-complib {options.hdf5_complib}: the PyTables installed here lacks it; it has {there}"
            )
        return cls(options.hdf5_filepath, options.hdf5_complevel, options.hdf5_complib)

    # -- the file --

    def open(self) -> None:
        """Open or create the file, and try to write to it.

        Raises:
            ConfigError: the path cannot be written, or holds something else; nothing is left behind.
        """
        self.close()
        # PyTables warns of every column that is no Python identifier, such as 0.6's utilization-gpu.
        warnings.filterwarnings("ignore", category=tables.NaturalNameWarning)
        self._open_file(self._next_path())

    def reopen(self) -> None:
        """Complete the file and go on with the next one.

        Where that cannot be, it is logged here and `write` raises OutputUnavailable until it can.
        """
        try:
            self._take_back()
            self._close_file()
            self._open_file(self._next_path())
        except (ConfigError, OutputUnavailable) as err:
            log.error("cannot go on with the next file: output=hdf5 cause=%s", err)

    def close(self) -> None:
        """Complete and close the file."""
        try:
            self._take_back()
        except (ConfigError, OutputUnavailable) as err:
            log.error("rows of a failed write stay in the file: path=%s cause=%s", self.path, err)
        self._undo.clear()
        self._close_file()

    def _next_path(self) -> str:
        if self._configured.endswith(SUFFIX):
            return self._configured
        if not os.path.basename(self._configured):
            raise ConfigError(
                f"--hdf5-filepath {self._configured}: names a directory; add the start of a file name to it"
            )
        return f"{self._configured}.{int(time.time()):010d}{SUFFIX}"

    def _open_file(self, path: str) -> None:
        """Open or create `path`, and try to write to it; ConfigError where that cannot be."""
        path = os.path.abspath(path)
        directory = os.path.dirname(path)
        if not os.path.isdir(directory):
            raise ConfigError(f"{path}: directory {directory} does not exist; create it or change --hdf5-filepath")
        existed = os.path.lexists(path)
        try:
            # the system tells a directory, missing rights and the like more clearly than HDF5 does
            with open(path, "r+b" if existed else "xb") as file:
                if not existed:
                    promise(file.fileno(), 0, SPARE_BYTES)
            if existed and not tables.is_hdf5_file(path):
                raise ConfigError(f"{path}: exists and is not an HDF5 file; move it or change --hdf5-filepath")
            self._lock_file(path)
            self.path = path
            self._file = tables.open_file(
                path,
                "a" if existed else "w",
                chunk_cache_size=CHUNK_CACHE_BYTES,
                # Both only bound when PyTables warns.
                max_group_width=1 << 40,
                max_columns=1 << 20,
            )
            self._flush()
        except _STORAGE_ERRORS as err:
            self._close_file()
            if not existed and os.path.lexists(path):
                os.unlink(path)
            raise ConfigError(
                f"{path}: cannot be opened for writing: {cause(err)}; "
                f"check its owner, rights and disk, or change --hdf5-filepath"
            ) from err

    def _lock_file(self, path: str) -> None:
        """See that no other collector writes to the file: two would ruin it for each other.

        A lock of the kind that HDF5 does not use itself, so that readers with their defaults do not meet it, and which
        other descriptors of this process cannot give up by being closed.
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
        self._lock = descriptor

    def _close_file(self) -> None:
        file, self._file = self._file, None
        self._handles.clear()
        self._rebuilds.clear()
        if file is not None:
            try:
                file.close()
            except Exception as err:  # noqa: BLE001 - as in `_take_back`
                log.warning("file not closed cleanly: path=%s cause=%s", self.path, cause(err))
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _was_moved(self) -> bool:
        """Whether the path no longer leads to the open file, as someone moved or removed it."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        return not os.path.samestat(there, os.fstat(self._file.fileno()))

    def _flush(self) -> None:
        """Bring HDF5's own structures to the file, too, or raise what hindered it; rows are there already.

        PyTables ignores what HDF5's flush returns, so a full disk would go unnoticed. Closing a second handle of a
        file flushes them as well, and there PyTables looks. It takes 0.2 ms.
        """
        tables.open_file(self.path, "r+").close()
        os.ftruncate(self._file.fileno(), self._file.get_filesize())  # what was reserved and not needed

    # -- a burst --

    def write(self, batches: Sequence[Batch]) -> None:
        """Append all rows of all batches and flush.

        Raises:
            OutputUnavailable: the disk is full or similar; what was appended has been or will be taken back.
        """
        self._burst_left_out = [0, 0]
        self._burst_header_bytes = 0
        try:
            self._prepare()
            for joined in join(batches):
                self._append(joined)
            self._flush()
        except OutputUnavailable:  # nothing was begun
            raise
        except (ConfigError, *_STORAGE_ERRORS) as err:
            self._roll_back()
            raise OutputUnavailable(f"cannot write to {self.path}: {cause(err)}") from err
        except BaseException:
            self._roll_back()
            raise
        self._undo.clear()
        self.values_left_out += self._burst_left_out[0]
        self.rows_left_out += self._burst_left_out[1]

    def _prepare(self) -> None:
        """See that the file is open, and as it was before the last burst if that one failed."""
        self._take_back()
        if self._file is not None and self._was_moved():
            log.warning("file was moved or removed, going on with the next one: path=%s", self.path)
            self._close_file()
        if self._file is None:
            self._open_file(self._next_path())

    def _roll_back(self) -> None:
        """Take a failed burst back now, or else before anything else is done with the file."""
        try:
            self._take_back()
        except (ConfigError, OutputUnavailable) as err:
            log.warning("failed write not taken back yet: path=%s cause=%s", self.path, err)

    def _take_back(self) -> None:
        """Bring the tables that a failed burst touched back to the rows that they had, and remove those it created.

        Raises:
            ConfigError: the file, which was closed, cannot be opened.
            OutputUnavailable: it cannot be done now; the file is closed.
        """
        if not self._undo:
            return
        if self._file is None:
            self._open_file(self.path)
        self._handles.clear()  # a failed burst leaves closed tables among them
        try:
            for path, count in self._undo.items():
                if count is None:
                    self._remove(path)
                else:
                    self._truncate(path, count)
            self._flush()
        except Exception as err:  # once HDF5 has failed, PyTables fails in all kinds of ways
            self._close_file()
            raise OutputUnavailable(f"cannot take a failed write back from {self.path}: {cause(err)}") from err
        self._undo.clear()

    def _remove(self, path: str) -> None:
        group = path.rsplit("/", 1)[0]
        if path in self._file:
            self._file.remove_node(path)
        if group in self._file and self._file.get_node(group)._v_nchildren == 0:
            self._file.remove_node(group)

    def _truncate(self, path: str, count: int) -> None:
        rows = self._file.get_node(path).nrows if path in self._file else 0
        if rows < count:
            log.error("rows lost by a failed write: path=%s table=%s rows=%d", self.path, path, count - rows)
        elif rows > count:
            self._file.get_node(path).truncate(count)

    def _append(self, joined: Joined) -> None:
        """Convert the rows of one schema and append them to the tables of their jobs."""
        order, jobs, starts = joined.by_job()
        hosts = np.array([host.encode() for host in joined.hosts], dtype="S")
        involved = involved_jobs(joined)
        for block in _blocks(self._pieces(joined.schema, jobs, starts)):
            self._reserve(sum([chunk_bytes(piece.table, piece.last - piece.first) for piece in block]))
            start = block[0].first
            rows = block[0].layout.fill(joined, order[start : block[-1].last], hosts, involved)
            for table, _, first, last in block:
                table.append(rows[first - start : last - start])

    def _reserve(self, size: int) -> None:
        """Have the file system set space aside for `size` bytes and the burst's headers, or raise OSError."""
        # the last blocks of the file may be holes: HDF5 has given them out and not written them yet
        start = max(0, self._file.get_filesize() - SPARE_BYTES)
        promise(self._file.fileno(), start, SPARE_BYTES + size + self._burst_header_bytes + SPARE_BYTES)

    def _pieces(self, schema: Schema, jobs: Sequence[int], starts: Sequence[int]) -> Iterator[_Piece]:
        """Where the rows of each job go, in pieces that fit into a block."""
        for job, start, stop in zip(jobs, starts, starts[1:]):
            handle = self._handle(job, schema)
            if handle is None:
                self._burst_left_out[1] += stop - start
                continue
            layout = handle.layout
            assert layout is not None  # `_handle` set it
            self._burst_left_out[0] += (len(layout.unfit) + len(layout.left_out)) * (stop - start)
            for first in range(start, stop, layout.capacity):
                yield _Piece(handle.table, layout, first, min(first + layout.capacity, stop))

    # -- tables --

    def _handle(self, job: int, schema: Schema) -> _Handle | None:
        """The open table for a job's rows, with every column that they need; None where there can be no table."""
        key = (job, schema.name)
        try:
            handle = self._handles[key]
            self._handles.move_to_end(key)
        except KeyError:
            handle = self._keep(key, self._open_table(job, schema))
        if handle is None:
            return None
        self._undo.setdefault(handle.table._v_pathname, handle.table.nrows)
        if handle.digest != schema.digest:
            layout = self._layout(schema, handle.table.dtype)
            if not layout.complete and self._may_rebuild(handle.table._v_pathname):
                handle.table = self._widen(handle.table, schema)
                layout = self._layout(schema, handle.table.dtype)
            elif not layout.complete:
                first = (layout.left_out + layout.unfit)[0]
                self._warn(schema.name, f"{first}...", f"the table was rebuilt {MAX_REBUILDS} times")
            handle.digest, handle.layout = schema.digest, layout
        return handle

    def _may_rebuild(self, path: str) -> bool:
        """Whether a table may get more columns: that copies all its rows, so not at the wish of every message."""
        self._rebuilds[path] = self._rebuilds.get(path, 0) + 1
        return self._rebuilds[path] <= MAX_REBUILDS

    def _keep(self, key: tuple[int, str], table: Any) -> _Handle | None:
        handle = self._handles[key] = None if table is None else _Handle(table)
        if len(self._handles) > MAX_HANDLES:
            _, oldest = self._handles.popitem(last=False)
            if oldest is not None:
                oldest.table._f_close(flush=False)  # the burst ends with a flush of the whole file
        return handle

    def _layout(self, schema: Schema, dtype: np.dtype[Any]) -> Layout:
        key = (schema.digest, dtype)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout(schema, dtype)
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
            if layout.complete:
                for name in layout.unfit:
                    self._warn(schema.name, name, "the file has it with another kind of value")
                if layout.left_out:
                    self._warn(schema.name, f"{layout.left_out[0]}...", "more columns than HDF5 can describe")
        else:
            self._layouts.move_to_end(key)
        return layout

    def _warn(self, table: str, name: str, reason: str) -> None:
        if (table, name) not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add((table, name))
            log.warning("column left out: path=%s table=%s column=%s cause=%s", self.path, table, name, reason)

    def _open_table(self, job: int, schema: Schema) -> Any:
        """The table in the file, created if it is not there; None if something else has its name."""
        group, path = group_path(job), f"{group_path(job)}/{schema.name}"
        in_the_way = None
        if group in self._file:
            if not isinstance(self._file.get_node(group), tables.Group):
                in_the_way = group
            elif path in self._file:
                table = self._file.get_node(path)
                if isinstance(table, tables.Table) and not table.description._v_is_nested:
                    return table
                in_the_way = path
        if in_the_way is None:
            columns = {n: column(d, i) for i, (n, d) in enumerate(grown({}, file_columns(schema)).items())}
            return self._create_table(group, schema.name, columns, f"Metrics for the Job {job}", self._filters)
        if (in_the_way, "") not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add((in_the_way, ""))
            log.warning("rows left out, their place is taken: path=%s node=%s", self.path, in_the_way)
        return None

    def _create_table(self, group: str, name: str, columns: Mapping[str, Any], title: str, filters: Any) -> Any:
        self._burst_header_bytes += header_bytes(len(columns), sum([c.itemsize for c in columns.values()]))
        self._reserve(0)
        self._undo[f"{group}/{name}"] = None
        table = self._file.create_table(group, name, columns, title=title, filters=filters, createparents=True)
        table.attrs.backend_version = BACKEND_VERSION
        return table

    def _widen(self, table: Any, schema: Schema) -> Any:
        """The table rebuilt with every column that rows of this schema need, under its old name."""
        dtypes = grown(columns_of(table.dtype), file_columns(schema))
        defaults = {name: table.coldescrs[name].dflt for name in table.colnames}
        columns = {name: column(dtype, i, defaults.get(name)) for i, (name, dtype) in enumerate(dtypes.items())}
        group, old = table._v_parent._v_pathname, table.name
        temporary = f"_rebuilt_{old}"  # no table of a message has such a name: they start with a letter
        if f"{group}/{temporary}" in self._file:  # of a burst that was killed
            self._file.remove_node(group, temporary)
        log.info("table gets more columns: path=%s table=%s rows=%d", self.path, table._v_pathname, table.nrows)
        rebuilt = self._create_table(group, temporary, columns, table.title, table.filters)
        self._reserve(chunk_bytes(rebuilt, int(table.nrows)))
        table.attrs._f_copy(rebuilt)
        _copy_rows(table, rebuilt)
        table._f_close(flush=False)
        self._file.move_node(group, newname=old, name=temporary, overwrite=True)
        del self._undo[f"{group}/{temporary}"]
        return rebuilt


def _copy_rows(table: Any, target: Any) -> None:
    """Append all rows of a table to one that has its columns and more, a bounded part at a time."""
    step = max(1, COPY_BYTES // target.dtype.itemsize)
    for start in range(0, table.nrows, step):
        rows = table.read(start, start + step)
        copied = np.empty(len(rows), dtype=target.dtype)
        for name in target.dtype.names:
            copied[name] = rows[name] if name in rows.dtype.names else missing(target.dtype[name])
        target.append(copied)
