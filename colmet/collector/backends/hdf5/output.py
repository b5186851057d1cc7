"""Output to HDF5: one group for each job, one table for each kind of metric, as Colmet 0.6 wrote them.

What `State` remembers is how many rows each table had before a burst, until the burst is on disk: so that a burst which
was killed is taken back, and its records are written again.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.hdf5.h5file import Damaged, FileBusy, Hdf5File, group_by_job
from colmet.collector.backends.hdf5.isolated import salvage, verify
from colmet.collector.backends.hdf5.library import STORAGE_ERRORS, cause, is_of_system, tables
from colmet.collector.columnar import join
from colmet.collector.journal.output_state import MAX_BYTES, OutputState, parse
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.runtime import cli
from colmet.common.runtime.cli import Options
from colmet.common.runtime.configuration import require
from colmet.common.runtime.directories import check_writable, make, sync_directory
from colmet.common.runtime.suggestions import did_you_mean

log = logging.getLogger(__name__)

SUFFIX = ".hdf5"
COMPLIBS = ("zlib", "lzo", "bzip2", "blosc", "blosc2")
NS = 1_000_000_000
# Of the time, for writing: the fewer and larger the appends, the cheaper a row. A site with little to write does not
# notice, as it writes well within this share whenever rows have been gathered for the longest time allowed.
SHARE = 0.02
MAX_DELAY_S = 60.0

_ROTATE = re.compile(r"([1-9][0-9]{0,8})(m|h|d|M|G|T)", re.ASCII)
_PERIODS_S = {"m": 60, "h": 3600, "d": 86400}
_SIZES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_UNFIT = 2  # failures of HDF5 to write to a file that has been looked through
REPLAY, SALVAGE = "replay", "salvage"


def rotation(text: str) -> tuple[str, int]:
    """An option type: ``("s", seconds)`` or ``("bytes", bytes)`` after which the next file is begun."""
    found = _ROTATE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a period (30m, 6h, 1d) nor a size (500M, 10G, 1T; M is 2^20 bytes)"
        )
    count, unit = int(found.group(1)), found.group(2)
    return ("s", count * _PERIODS_S[unit]) if unit in _PERIODS_S else ("bytes", count * _SIZES[unit])


def complib(text: str) -> str:
    """Return the name of a compression library: an option type."""
    if text in COMPLIBS or text in tables.filters.all_complibs:
        return text
    codecs = [name for name in tables.filters.all_complibs if ":" in name]
    known = [*COMPLIBS, *codecs]
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}{did_you_mean(text, known)}")


def boot_id() -> str:
    """What tells this start of the machine from another. Source: /proc/sys/kernel/random/boot_id."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).decode().strip()
    except OSError:
        return ""


class Notes(NamedTuple):
    """What the output remembers.

    Attributes:
        file: that it writes to; empty at first.
        inode: of the file.
        first: number of the record with which the file was begun, None where the journal alone cannot make it again.
        tables: how many it has, without those that the burst under way creates; None where they are not counted.
        undo: tables that the burst under way touches, and their rows before it, None for those that it creates.
        tails: checksums of their last chunks, where these are written anew.
        boot: the start of the machine in which the file was opened; empty once it is closed.
        plan: how a damaged file is being replaced: by the journal, or by what can be read of it; empty if it is not.
        aside: where the damaged file is or will be.
    """

    file: str = ""
    inode: int = 0
    first: int | None = None
    tables: int | None = None
    undo: Mapping[str, int | None] = {}
    tails: Mapping[str, int] = {}
    boot: str = ""
    plan: str = ""
    aside: str = ""

    @classmethod
    def parse(cls, notes: Mapping[str, Any]) -> Notes:
        """Those that were saved; ValueError where they are not ours."""
        try:
            read = cls(**notes)
        except TypeError as err:
            raise ValueError(str(err)) from err
        texts = (read.file, read.boot, read.plan, read.aside)
        counts = [n for n in (read.first, read.tables) if n is not None]
        if not isinstance(read.undo, dict) or not isinstance(read.tails, dict):
            raise ValueError("undo or tails")
        counts += [read.inode, *[n for n in read.undo.values() if n is not None], *read.tails.values()]
        if not all(type(text) is str for text in texts) or not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a value of another type")
        if read.plan not in ("", REPLAY, SALVAGE) or (read.file and not os.path.isabs(read.file)):
            raise ValueError("plan or file")
        return read


class Hdf5Output(OutputBackend):
    """Writes each row to the table of its job and kind, in bulk.

    Args:
        path: the file, where it ends in ``.hdf5``; otherwise files are ``<path>.<epoch seconds>.hdf5``, named by the
            time from which they hold what comes in.
        complevel: compression level of tables that are created, 0 for none.
        complib: compression library, as `complib` returns it.
        checksums: whether tables that are created have checksums.
        rotate_s: begin a file at each multiple of so many seconds since the epoch; 0 for never.
        rotate_bytes: begin a file when one has so many bytes; 0 for never.
        max_delay_s: how long rows may be gathered.

    Attributes:
        values_left_out: values that had no column to go to.
        rows_left_out: rows that had no table to go to.
        files_damaged: files that were set aside.
        path: of the file that is or will be written to; empty where the next record names it.
        rows_lost: rows of damaged files that could neither be read nor be had again.
    """

    name = "hdf5"
    share = SHARE

    def __init__(
        self,
        path: str,
        complevel: int = 0,
        complib: str = "zlib",
        *,
        checksums: bool = False,
        rotate_s: int = 0,
        rotate_bytes: int = 0,
        max_delay_s: float = MAX_DELAY_S,
    ) -> None:
        self.max_delay_s = max_delay_s
        self.values_left_out = 0
        self.rows_left_out = 0
        self.files_damaged = 0
        self.rows_lost = 0
        self._configured = path
        self._fixed = path.endswith(SUFFIX)
        self._filters = tables.Filters(complevel, complib, fletcher32=checksums)
        self._rotate_s = rotate_s
        self._rotate_bytes = rotate_bytes
        self._boot = boot_id()
        self._state = OutputState("", "", 0, 0)
        self._file: Hdf5File | None = None
        self.path = ""
        self._first: int | None = None
        self._burst: Notes | None = None  # what was remembered before the burst that is not done yet
        self._perhaps_done = False  # it may be remembered as done
        self._doubt = False  # HDF5 met something in the file that is not in order
        self._unfit = 0  # times in a row that it did so while writing
        self._blamed = (-1, -1)  # the first and the last record that it did so with before the file was replaced
        self._sound_until = 0  # no defect that these records meet is the file's
        self._next: tuple[int, str] | None = None  # from which record on the next file is written, and its path

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that begin with --hdf5."""
        parser.add_argument(
            "--hdf5-filepath",
            metavar="PATH",
            help="write to PATH.<epoch seconds>.hdf5; to this one file if PATH ends in .hdf5",
        )
        parser.add_argument(
            "--hdf5-rotate",
            metavar="PERIOD_OR_SIZE",
            type=rotation,
            action="append",
            default=[],
            help="start a new file each full 30m, 6h, 1d, or at 500M, 10G; in UTC; repeatable (default: at SIGHUP and "
            "at a start)",
        )
        parser.add_argument(
            "--hdf5-complevel",
            metavar="0-9",
            type=int,
            choices=range(10),
            default=0,
            help=cli.Rare("compression level (default: %(default)s)"),
        )
        parser.add_argument(
            "--hdf5-complib",
            metavar="LIBRARY",
            type=complib,
            default="zlib",
            help=cli.Rare(
                f"compression library: {', '.join(COMPLIBS)}, or one with a codec, as PyTables names it (blosc:lz4); "
                "h5py needs plug-ins for others than zlib (default: %(default)s)"
            ),
        )
        parser.add_argument(
            "--hdf5-checksums",
            action="store_true",
            help=cli.Rare("add checksums (Fletcher-32) to new tables, which all readers check"),
        )
        parser.add_argument(
            "--hdf5-max-delay",
            metavar="S",
            type=cli.positive_seconds,
            default=MAX_DELAY_S,
            help=cli.Rare(
                "write rows at most S seconds late: they are collected so that writing takes 2 %% of the time "
                "(default: %(default)g)"
            ),
        )
        require(parser, "--hdf5-filepath", "--hdf5-")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Hdf5Output | None:
        """The output, or None without --hdf5-filepath; ConfigError for what cannot work."""
        path = options.hdf5_filepath
        if path is None:
            return None
        if not path:
            raise ConfigError("--hdf5-filepath is empty; give a path, e.g. /var/lib/colmet/cluster")
        if tables.which_lib_version(options.hdf5_complib.partition(":")[0]) is None:
            there = ", ".join([lib for lib in COMPLIBS if tables.which_lib_version(lib) is not None])
            raise ConfigError(
                f"--hdf5-complib {options.hdf5_complib}: the PyTables installed here lacks it; it has {there}"
            )
        rotate = dict(options.hdf5_rotate)
        if len(rotate) < len(options.hdf5_rotate):
            raise ConfigError("--hdf5-rotate: give one period, one size, or one of each")
        if rotate and path.endswith(SUFFIX):
            raise ConfigError(
                f"--hdf5-rotate: {path} ends in {SUFFIX}, so it is the one file; each needs a name "
                f"of its own: give --hdf5-filepath {path[: -len(SUFFIX)]}, files are then named by their time"
            )
        return cls(
            path,
            options.hdf5_complevel,
            options.hdf5_complib,
            checksums=options.hdf5_checksums,
            rotate_s=rotate.get("s", 0),
            rotate_bytes=rotate.get("bytes", 0),
            max_delay_s=options.hdf5_max_delay,
        )

    def counters(self) -> dict[str, int]:
        """Values, rows and files that something was wrong with."""
        return {
            "values_left_out": self.values_left_out,
            "rows_left_out": self.rows_left_out,
            "files_damaged": self.files_damaged,
            "rows_lost": self.rows_lost,
        }

    # -- life --

    def journal_dir(self) -> str:
        """Beside the file."""
        return f"{self._configured}.journal"

    def check(self, journal_dir: str) -> None:
        """See that the file could be opened or made, and that it is none of another kind."""
        path = self._path_at(int(time.time()))
        try:
            if not os.path.lexists(path):
                check_writable(os.path.dirname(path), parents=True)
            elif not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            elif path != _remembered(journal_dir) and not (os.path.isfile(path) and tables.is_hdf5_file(path)):
                raise ConfigError(f"{path}: exists and is not an HDF5 file; move it or change --hdf5-filepath")
        except OSError as err:
            raise _not_writable(path, err) from err

    def open(self, state: OutputState) -> None:
        """See that the path can be written, and open or create the file unless it has to be looked at first.

        Raises:
            ConfigError: the path cannot be written, or holds something else; nothing is left behind.
        """
        self.close()
        self._state = state
        notes = self._notes()
        new = self._path_at(int(time.time()))
        try:
            make(os.path.dirname(new))
        except OSError as err:
            raise _not_writable(new, err) from err
        self.path, self._first = new, None
        self._burst, self._next = None, None
        under_way = bool(notes.undo or notes.plan or (notes.boot and notes.boot != self._boot))
        there = bool(notes.file) and (os.path.lexists(notes.file) or bool(notes.plan))
        if notes.file and not there:
            log.warning("file was moved or removed, going on with the next one: path=%s", notes.file)
        backlog = state.position < state.end
        if there and (under_way or notes.file == new or (backlog and self._is_ours(notes.file))):
            self.path, self._first, self._burst = notes.file, notes.first, notes if notes.undo else None
            if notes.file != new:
                self._next = (state.end if self._is_ours(notes.file) else 0, new)
        elif backlog and not self._fixed:
            self.path = ""  # named by the first record that goes into it
            return
        try:
            if self.path == notes.file and under_way:
                if os.path.lexists(self.path):
                    self._file = self._hdf5_file()
                    self._file.lock()
            else:
                self._open_file()
        except FileBusy as err:
            log.warning("%s", err)
        except Damaged as err:
            if self.path != notes.file:
                raise ConfigError(f"{err}; move it or change --hdf5-filepath") from err
            log.error("%s", err)
        except OutputUnavailable as err:  # it is remembered before anything is written
            log.warning("%s", err)
        except OSError as err:
            raise _not_writable(self.path, err) from err

    def recover(self) -> None:
        """Take back a burst that was killed; replace the file where it does not bear it, or cannot be opened.

        Raises:
            OutputUnavailable: not now.
        """
        if not self.path:
            return
        notes = self._notes()
        known = notes.file == self.path
        if (
            known
            and notes.plan
            and (notes.plan == REPLAY or os.path.lexists(self.path) or os.path.lexists(notes.aside))
        ):
            self._replace_damaged(notes)
            return
        if known and not os.path.lexists(self.path) and notes.tables != 0:
            log.warning("file was moved or removed, going on with the next one: path=%s", self.path)
            self._forget_file()
            return
        try:
            if known and self._unfit >= MAX_UNFIT:
                raise Damaged(f"{self.path}: all of it can be read, but HDF5 cannot write to it")
            if known and (self._burst or self._doubt or (notes.boot and notes.boot != self._boot)):
                self._look_through(notes)
            elif self._file is None or not self._file.is_open:
                self._open_file()
            assert self._file is not None
            self._file.count()
        except Damaged as err:
            if not known:
                raise OutputUnavailable(str(err)) from err
            self._set_aside(notes, str(err))
        except ConfigError as err:
            raise OutputUnavailable(str(err)) from err
        self._doubt = False

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Append all rows of all records and flush.

        Raises:
            OutputUnavailable: the disk is full or similar; what was appended has been or will be taken back.
        """
        before = self._state.position
        self._prepare(records[0])
        if self._state.position != before:
            raise OutputUnavailable(f"{self.path} is written again from the journal")
        while records:
            self._switch(records[0])
            count = self._in_this_file(records)
            self._write(records[:count])
            records = records[count:]

    def reopen(self) -> None:
        """Complete the file and go on with the next one; records that came before go to the former one.

        Where that cannot be, it is logged here and `write` raises OutputUnavailable until it can.
        """
        if not self.path:
            return
        if self._next is None:
            self._next = (self._state.end, self._path_at(int(time.time())))
        try:
            self._take_back()
            if self._burst is None and self._state.position >= self._next[0]:  # else `write` begins it
                self._begin(self._next[1], reopen=True)
        except (ConfigError, Damaged, OutputUnavailable) as err:
            log.error("cannot go on with the next file: output=hdf5 cause=%s", err)

    def close(self) -> None:
        """Complete and close the file."""
        try:
            self._take_back()
            if self._burst is not None:
                self.recover()
        except (ConfigError, OutputUnavailable) as err:
            log.error("rows of a failed write stay in the file until the next start: path=%s cause=%s", self.path, err)
        if self._burst is None and self._file is not None and self._file.is_open:
            notes = self._noted({})._replace(boot="")
            try:
                if self._close_file():
                    self._save(self._state.position, notes)
            except OutputUnavailable as err:
                log.warning("clean end not remembered: output=hdf5 cause=%s", err)
        self._close_file()
        self._burst, self._perhaps_done = None, False

    # -- files --

    def _path_at(self, time_s: int) -> str:
        """The file that is begun at a time."""
        if self._fixed:
            return os.path.abspath(self._configured)
        if not os.path.basename(self._configured):
            raise ConfigError(
                f"--hdf5-filepath {self._configured}: names a directory; add the start of a file name to it"
            )
        return os.path.abspath(f"{self._configured}.{time_s:010d}{SUFFIX}")

    def _is_ours(self, path: str) -> bool:
        """Whether the command line leads to this file, at some time."""
        if self._fixed:
            return path == self._path_at(0)
        return self._begun_s(path) is not None

    def _begun_s(self, path: str) -> int | None:
        """The time in the name of a file, None where it is none of ours."""
        start, end = os.path.abspath(self._configured) + ".", SUFFIX
        digits = path[len(start) : -len(end)]
        if path.startswith(start) and path.endswith(end) and re.fullmatch(r"[0-9]{10}", digits, re.ASCII):
            return int(digits)
        return None

    def _hdf5_file(self) -> Hdf5File:
        return Hdf5File(self.path, self._filters)

    def _open_file(self) -> None:
        """Open or create the file at `_path`, and remember it.

        Raises:
            ConfigError, FileBusy, Damaged: as `Hdf5File.open`.
            OutputUnavailable: it cannot be remembered; it is open.
        """
        file = self._file or self._hdf5_file()
        self._file = None
        file.open()
        self._file = file
        notes = self._notes()
        if file.created:
            self._first = self._state.position
        elif notes.file != self.path:
            self._first = None  # what is in there does not come from the journal
        elif notes.inode in (0, file.inode):
            file.tables = notes.tables
        else:  # another file was put in its place
            self._first = None
        if notes.file != self.path or file.created:
            self._save(self._state.position, self._noted({}))

    def _close_file(self) -> bool:
        """Close it, if there is one; whether that went well."""
        file, self._file = self._file, None
        return file is None or file.close()

    def _forget_file(self) -> None:
        """The file is no longer there: the next record begins another one."""
        self._close_file()
        self._burst, self._next = None, None
        self.path = self._path_at(0) if self._fixed else ""
        if self.path:
            self._save(self._state.position, Notes(self.path, first=self._state.position, tables=0))

    def _begin(self, path: str, reopen: bool = False) -> None:
        """Complete the file and go on with another one, if it is another."""
        if path != self.path:
            log.info("next file: path=%s former=%s", path, self.path)
            self._close_file()
            if not os.path.lexists(path):  # remembered first, so that no file is there that nobody knows
                self._save(self._state.position, Notes(path, first=self._state.position, tables=0))
            self.path, self._first, reopen = path, self._state.position, True
        if self._next is not None and path == self._next[1]:
            self._next = None
        if reopen:
            self._close_file()
            self._open_file()

    def _prepare(self, record: JournalRecord) -> None:
        """See that the file is open, and as it was before the last burst if that one failed."""
        try:
            self._take_back()
            if self._doubt:
                self._close_file()
            if self._file is not None and self._file.is_open and self._file.was_moved():
                log.warning("file was moved or removed, going on with the next one: path=%s", self.path)
                self._forget_file()
            while self.path and (self._file is None or not self._file.is_open):
                self.recover()
            if not self.path:
                self._begin(self._path_at(record.received_ns // NS))
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err
        except OSError as err:
            raise OutputUnavailable(f"cannot look at {self.path}: {cause(err)}") from err

    def _switch(self, record: JournalRecord) -> None:
        """Begin the next file if this record is the first one that goes into it."""
        try:
            while path := self._path_for(record):
                self._begin(path)
            if self._file is not None and not self._fixed and 0 < self._rotate_bytes <= self._file.size_bytes:
                self._begin(self._path_at(record.received_ns // NS))
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err

    def _path_for(self, record: JournalRecord) -> str:
        """The file that is to be begun with this record; empty for none, were it not for the size."""
        if self._next is not None and record.number >= self._next[0]:
            return self._next[1]
        if self._rotate_s:
            period = record.received_ns // NS // self._rotate_s
            if period > (self._begun_s(self.path) or 0) // self._rotate_s:
                return self._path_at(period * self._rotate_s)
        return ""

    def _in_this_file(self, records: Sequence[JournalRecord]) -> int:
        """How many of the records, of which the first is one, go to the file."""
        if self._next is None and not self._rotate_s:
            return len(records)
        return next((n for n, record in enumerate(records) if n and self._path_for(record)), len(records))

    # -- what is remembered --

    def _notes(self) -> Notes:
        try:
            return Notes.parse(self._state.notes)
        except ValueError as err:
            log.error("state of the file is invalid and not used: cause=%s", err)
            return Notes()

    def _noted(self, undo: Mapping[str, int | None], tails: Mapping[str, int] | None = None) -> Notes:
        """What is to be remembered about the open file."""
        assert self._file is not None
        return Notes(self.path, self._file.inode, self._first, self._file.tables, undo, tails or {}, boot=self._boot)

    def _save(self, position: int, notes: Notes) -> None:
        self._state.save(position, notes._asdict(), position if notes.first is None else notes.first)

    # -- a burst --

    def _write(self, records: Sequence[JournalRecord]) -> None:
        """Append the rows of records to the file, as one burst."""
        file = self._file
        assert file is not None  # `_prepare` opened it
        parts = [group_by_job(columns) for columns in join([batch for record in records for batch in record.batches])]
        try:
            burst = self._noted(*file.plan(parts))
            self._save(self._state.position, burst)
            self._burst = burst
            for part in parts:
                file.append(part)
            file.flush()
            file.sync()
            self._perhaps_done = True
            done = self._noted(dict.fromkeys(file.replaced))
            self._save(records[-1].number + 1, done)
        except BaseException as err:
            self._roll_back()
            if isinstance(err, STORAGE_ERRORS):
                if not is_of_system(err):
                    self._doubt = True
                    if self._blamed[0] <= records[-1].number and records[0].number <= self._blamed[1]:
                        raise  # another file did not help: it is one of these records
                    self._unfit += 1
                    if self._unfit >= MAX_UNFIT:
                        self._blamed = records[0].number, records[-1].number
                raise OutputUnavailable(f"cannot write to {self.path}: {cause(err)}") from err
            if isinstance(err, Exception) and not isinstance(err, OutputUnavailable):
                self._suspect(records, err)
            raise
        self._burst, self._perhaps_done, self._unfit = None, False, 0
        self.values_left_out += file.left_out[0]
        self.rows_left_out += file.left_out[1]
        if file.replaced:
            self._drop_replaced(file, done)
        file.close_idle()

    def _drop_replaced(self, file: Hdf5File, burst: Notes) -> None:
        """Remove the former tables of those that got more columns: a burst of its own, which was remembered already.

        Raises:
            OutputUnavailable: that cannot be, nor can it be taken back; the rows are written.
        """
        self._burst = burst
        try:
            file.drop_replaced()
        except Exception as err:  # see `_take_back`; the rows are written, so none is to be dropped
            self._roll_back()  # removes them, too
            if self._burst is not None:
                raise OutputUnavailable(f"former tables not removed from {self.path}: {cause(err)}") from err
        else:
            self._burst = None

    def _roll_back(self) -> None:
        """Take a failed burst back now, or else before anything else is done with the file."""
        try:
            self._take_back()
        except (ConfigError, OutputUnavailable) as err:
            log.warning("failed write not undone yet: path=%s cause=%s", self.path, err)

    def _take_back(self) -> None:
        """Bring the tables that a failed burst touched back to the rows that they had, and remove those it created.

        Raises:
            OutputUnavailable: it cannot be done now; the file is closed.
        """
        if self._burst is None:
            return
        if self._perhaps_done:  # the disk may say so already
            self._save(self._state.position, self._burst)
            self._perhaps_done = False
        if self._file is None or not self._file.is_open:
            self._doubt = True
            return
        try:
            self._file.restore(self._burst.undo, self._burst.tails)
        except Exception as err:  # once HDF5 has failed, PyTables fails in all kinds of ways
            self._doubt = True
            self._close_file()
            raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
        self._burst = None

    # -- damage --

    def _suspect(self, records: Sequence[JournalRecord], err: Exception) -> None:
        """See whether it is the file on which writing failed in an unexpected way, and not a defect of ours.

        The defect is passed on: its record is then looked for in parts of these, without another look at the file.

        Raises:
            OutputUnavailable: it was the file, which has been replaced, or it cannot be looked at now.
        """
        if records[0].number < self._sound_until:
            return
        self._doubt = True
        damaged = self.files_damaged
        self.recover()
        if self.files_damaged > damaged:
            raise OutputUnavailable(f"{self.path} was damaged and has been replaced") from err
        self._sound_until = records[-1].number + 1

    def _look_through(self, notes: Notes) -> None:
        """See that the file is sound, and take back the burst that was under way.

        Raises:
            Damaged: it is not.
            ConfigError, OutputUnavailable: not now.
        """
        self._close_library()
        log.warning("file was not closed, it is looked through: path=%s", self.path)
        verify(self.path, notes.tables, notes.undo, notes.tails)
        self._open_file()
        assert self._file is not None
        if self._burst is not None:
            try:
                self._file.restore(notes.undo, notes.tails)
            except Damaged:
                raise
            except Exception as err:
                self._close_file()
                if isinstance(err, tables.HDF5ExtError) and not is_of_system(err):
                    raise Damaged(f"{self.path}: {cause(err)}") from err
                raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
            log.warning("interrupted write undone: path=%s tables=%d", self.path, len(notes.undo))
        self._file.count()
        self._save(self._state.position, self._noted({}))
        self._burst = None

    def _close_library(self) -> None:
        if self._file is not None and self._file.is_open:
            self._close_file()

    def _set_aside(self, notes: Notes, why: str) -> None:
        """Replace a damaged file: by the journal where that has all that was in it, else by what can be read of it.

        Each step is remembered before it is done, and can be done again.
        """
        self._close_file()
        self._unfit = 0
        self.files_damaged += 1
        plan = REPLAY if notes.first is not None and self._state.oldest <= notes.first else SALVAGE
        notes = notes._replace(plan=plan, aside=_unused(f"{self.path}.damaged"))
        log.error("file is damaged: path=%s cause=%s", self.path, why)
        self._save(self._state.position, notes)
        self._replace_damaged(notes)

    def _replace_damaged(self, notes: Notes) -> None:
        """Do what `_set_aside` has remembered, or what is left of it."""
        path, aside = self.path, notes.aside
        self._close_file()
        self._sound_until = 0
        try:
            if notes.plan == REPLAY and notes.first is not None and self._state.oldest <= notes.first:
                self._replay(path, aside, notes.first)
            else:
                self._salvage(path, aside, notes)
            self._burst = None
            self._open_file()
        except (OSError, ConfigError, Damaged) as err:
            raise OutputUnavailable(f"cannot replace the damaged {path}: {cause(err)}") from err
        assert self._file is not None
        self._file.count()
        self._save(self._state.position, self._noted({}))

    def _replay(self, path: str, aside: str, first: int) -> None:
        if os.path.lexists(path) and not os.path.lexists(aside):
            os.rename(path, aside)
            sync_directory(os.path.dirname(path))
        self._first = first
        self._save(first, Notes(path, first=first, tables=0))
        log.error(
            "damaged file set aside, all its rows are written again from the journal: path=%s aside=%s; "
            "remove the latter when the new file is complete",
            path,
            aside,
        )

    def _salvage(self, path: str, aside: str, notes: Notes) -> None:
        if not os.path.lexists(aside):
            try:
                os.link(path, aside)
            except OSError:  # a file system without links
                os.rename(path, aside)
            sync_directory(os.path.dirname(path))
        if not os.path.lexists(path) or os.path.samefile(path, aside):
            rebuilding = f"{path}.rebuilding"
            saved = salvage(aside, rebuilding, path, notes.tables, notes.undo, notes.tails)
            os.replace(rebuilding, path)
            sync_directory(os.path.dirname(path))
            self.rows_lost += saved.lost_rows
            log.error(
                "damaged file set aside, replaced by what can be read of it: path=%s aside=%s tables=%d rows=%d "
                "tables_lost=%d rows_lost=%d; keep the latter if rows were lost that matter to you, else remove it",
                path,
                aside,
                *saved,
            )
        self._first = None
        self._save(self._state.position, Notes(path))


def _not_writable(path: str, err: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot be opened for writing: {cause(err)}; check its owner, rights and disk, or change "
        "--hdf5-filepath"
    )


def _remembered(journal_dir: str) -> str:
    """Return the file that the output wrote to last, which it replaces where it is damaged; "" where none is known."""
    try:
        with open(os.path.join(journal_dir, f"{Hdf5Output.name}.json"), "rb") as file:
            return Notes.parse(parse(file.read(MAX_BYTES + 1))["notes"]).file
    except (OSError, ValueError):
        return ""


def _unused(path: str) -> str:
    """This path, or with a number behind it if it is taken."""
    found, number = path, 0
    while os.path.lexists(found):
        number += 1
        found = f"{path}.{number}"
    return found
