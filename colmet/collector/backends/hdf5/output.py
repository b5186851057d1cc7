"""Output to HDF5: one group for each job, one table for each kind of metric, as Colmet 0.6 wrote them.

Until a burst is on disk, a checkpoint keeps the tables' previous row counts: a killed burst is rolled back, and its
records are written again.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from enum import Enum

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.hdf5 import options as hdf5_options
from colmet.collector.backends.hdf5 import replacement
from colmet.collector.backends.hdf5.burst import Burst
from colmet.collector.backends.hdf5.checkpoint import REPLAY, Checkpoint, boot_id, last_file
from colmet.collector.backends.hdf5.expiry import Expiry
from colmet.collector.backends.hdf5.h5file import Hdf5File, Tails, Undo
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.isolated import verify
from colmet.collector.backends.hdf5.library import STORAGE_ERRORS, cause, is_of_system, tables
from colmet.collector.backends.hdf5.options import MAX_DELAY_S
from colmet.collector.backends.hdf5.pace import BURST_S, TABLE_BYTES, BurstPace
from colmet.collector.backends.hdf5.rotation import FileNames, Rotation, received_s
from colmet.collector.backends.hdf5.suspicion import Suspicion
from colmet.collector.columnar import PLACES, RowsByJob, join
from colmet.collector.journal.output_state import OutputState
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.runtime.cli import Options
from colmet.common.runtime.files import check_writable, make, reason_with_remedy

log = logging.getLogger(__name__)

# Share of the time spent writing: the fewer and larger the appends, the cheaper a row. Small sites are not affected:
# they stay well within this share, and write whenever rows have waited for the maximum delay.
SHARE = 0.005


class FileState(Enum):
    """State of the file before rows can be appended; for the transitions see `Hdf5Output`."""

    UNNAMED = "the next record names it"
    CLOSED = "it has to be opened or created"
    OPEN = "it accepts rows"
    DOUBTFUL = "it has to be looked through, and a burst may have to be taken back"
    UNFIT = "all of it can be read, but HDF5 cannot write to it"
    REPLACING = "it is damaged, and is being replaced"
    GONE = "it was moved or removed"


class Hdf5Output(OutputBackend):
    """Bulk output of rows to the tables of their job and kind.

    `recover` brings the file from any state to OPEN; `write` keeps it there or leaves it to the next `recover`::

        UNNAMED ---- first record ----> CLOSED ---- opened, created ----> OPEN ---- rotation, SIGHUP ----> CLOSED
        CLOSED, OPEN ---- HDF5 fails, a burst is not rolled back, the machine went down ----> DOUBTFUL
        DOUBTFUL ---- sound, the burst is rolled back ----> OPEN
        DOUBTFUL, CLOSED ---- damaged ----> REPLACING ---- replayed, salvaged ----> OPEN
        OPEN ---- HDF5 fails again on a sound file ----> UNFIT ----> REPLACING
        any ---- moved, removed ----> GONE ----> UNNAMED, or CLOSED if there is only one file

    The current burst has states of its own (`Burst`), as has the search for the cause of a failure (`Suspicion`).

    Args:
        path: the only file if it ends in ``.hdf5``; otherwise files are ``<path>.<epoch seconds>.hdf5``, named by the
            start of their time of receipt.
        complib: compression library, as `options.complib` returns it.
        checksums: whether new tables have checksums.
        rotate_s: begin a file at each multiple of this period since the epoch; 0 for never.
        rotate_bytes: begin a file when one has reached this size; 0 for never.
        keep_s: remove files whose last row is older; 0 for never.

    Attributes:
        path: of the current or next file; empty if the next record names it.
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
        keep_s: int = 0,
        max_delay_s: float = MAX_DELAY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_delay_s = max_delay_s
        # dropped for lack of a column or a table; damaged files set aside; their rows that the journal lacks, too
        self._counts = dict.fromkeys(("values_left_out", "rows_left_out", "files_damaged", "rows_lost"), 0)
        self.path = ""
        self._names = FileNames(path)
        self.rotation = Rotation(self._names, rotate_s, rotate_bytes)
        self._expiry = Expiry(self._names, keep_s)
        self._filters = tables.Filters(complevel, complib, fletcher32=checksums)
        self._boot = boot_id()
        self._state = OutputState("", "", 0, 0)
        self._burst = Burst(self._state)
        self._suspicion = Suspicion()
        self._monotonic = monotonic
        self._pace = BurstPace()
        self._joined: tuple[tuple[int, ...], list[RowsByJob]] = (), []  # records by first, last and number; their rows
        self._file: Hdf5File | None = None
        self._first: int | None = None  # see `Checkpoint`

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that begin with --hdf5."""
        hdf5_options.add_options(parser)

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Hdf5Output | None:
        """Return the output, or None without --hdf5-filepath; ConfigError for invalid options."""
        if options.hdf5_filepath is None:
            return None
        rotate = hdf5_options.check(options)
        return cls(
            options.hdf5_filepath,
            options.hdf5_complevel,
            options.hdf5_complib,
            checksums=options.hdf5_checksums,
            rotate_s=rotate.get("s", 0),
            rotate_bytes=rotate.get("bytes", 0),
            keep_s=options.hdf5_keep,
        )

    def counters(self) -> dict[str, int]:
        """Return the counts of dropped values and rows, damaged files and lost rows, and removed files."""
        return {**self._counts, **self._expiry.counts}

    # -- lifecycle --

    def journal_dir(self) -> str:
        """Return the journal directory beside the file."""
        return f"{self._names.configured}.journal"

    def check(self, journal_dir: str) -> None:
        """Check that the file can be created, or is an accessible HDF5 file; warn of each file to be removed."""
        path = self._names.path_at(int(time.time()))
        try:
            if not os.path.lexists(path):
                check_writable(os.path.dirname(path), parents=True)
            elif not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            elif path != last_file(journal_dir, self.name) and not (os.path.isfile(path) and tables.is_hdf5_file(path)):
                raise ConfigError(f"{path}: exists and is not an HDF5 file; move it or change --hdf5-filepath")
        except OSError as err:
            raise _not_writable(path, err) from err
        for file in self._expiry.old_files(path):
            log.warning("old file will be removed: path=%s bytes=%d", *file)

    def open(self, state: OutputState) -> None:
        """Check that the path is writable, and open or create the file unless `recover` must check it first.

        Raises:
            ConfigError: the path is not writable, or is another kind of file; nothing is left behind.
        """
        self.close()
        self._state = state
        self._burst = Burst(state)
        self.rotation.planned = None
        self._expiry.is_due = True
        saved = Checkpoint.load(state)
        new = self._names.path_at(int(time.time()))
        try:
            make(os.path.dirname(new))
        except OSError as err:
            raise _not_writable(new, err) from err
        self.path, self._first = new, None
        under_way = bool(saved.undo or saved.plan or self._was_not_closed(saved))
        there = bool(saved.file) and (os.path.lexists(saved.file) or bool(saved.plan))
        if saved.file and not there:
            log.warning("file was moved or removed, continuing with the next one: path=%s", saved.file)
        backlog = state.position < state.end
        is_ours = self._names.is_ours(saved.file)
        if there and (under_way or saved.file == new or (backlog and is_ours)):
            self.path, self._first = saved.file, saved.first
            if saved.undo:
                self._burst.resume(saved)
            if saved.file != new:
                self.rotation.planned = (state.end if is_ours else 0, new)
        elif backlog and not self._names.is_fixed:
            self.path = ""  # named by its first record
            return
        try:
            if self.path == saved.file and under_way:
                if os.path.lexists(self.path):
                    self._file = Hdf5File(self.path, self._filters)
                    self._file.lock()
            else:
                self._open_file()
        except Damaged as err:
            if self.path != saved.file:
                raise ConfigError(f"{err}; move it or change --hdf5-filepath") from err
            log.error("%s", err)
        except OutputUnavailable as err:  # `recover` opens it and saves the checkpoint before anything is written
            log.warning("%s", err)
        except OSError as err:
            raise _not_writable(self.path, err) from err

    def recover(self) -> None:
        """Bring the file to OPEN: roll back a killed burst, replace a damaged file; or raise OutputUnavailable."""
        saved = Checkpoint.load(self._state)
        state = self._state_of_file(saved)
        if state is FileState.UNNAMED:
            return
        if state is FileState.REPLACING:
            self._replace(saved)
            return
        if state is FileState.GONE:
            self._forget_file()
            return
        try:
            if state is FileState.UNFIT:
                raise Damaged(f"{self.path}: all of it can be read, but HDF5 cannot write to it")
            if state is FileState.DOUBTFUL:
                self._look_through(saved)
            elif state is FileState.CLOSED:
                self._open_file()
            assert self._file is not None
            self._file.count()
        except Damaged as err:
            if saved.file != self.path:
                raise OutputUnavailable(str(err)) from err
            self._set_aside(saved, str(err))
        except ConfigError as err:
            raise OutputUnavailable(str(err)) from err
        self._suspicion.is_doubted = False
        self._expiry.remove(self.path)

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Append rows and flush, in bursts; none begins after `BURST_S`, and the caller passes the other rows again.

        Raises:
            OutputUnavailable: the disk is full or similar; appended rows have been or will be rolled back.
        """
        try:
            self._write_bursts(records)
        except OutputUnavailable:
            self._expiry.is_due = True  # a full disk may have files that are too old by now
            raise
        finally:
            self._expiry.remove(self.path)

    def _write_bursts(self, records: Sequence[JournalRecord]) -> None:
        before = self._state.position
        self._prepare(records[0])
        if self._state.position != before:
            raise OutputUnavailable(f"{self.path} is written again from the journal")
        began = self._monotonic()
        while records and self._monotonic() - began < BURST_S:
            saved = Checkpoint.load(self._state)
            is_partly = records[0].number < saved.until
            if is_partly:
                count = sum(1 for record in records if record.number < saved.until)
            else:
                self._rotate(records[0])
                count = self.rotation.count(self.path, records)
            self._write(
                records[:count], saved.places if is_partly else 0, max(saved.until, records[count - 1].number + 1)
            )
            records = [record for record in records if record.number >= self._state.position]

    def reopen(self) -> None:
        """Complete the file and go on with the next one; earlier records still go to the former one.

        A failure is logged here, and `write` raises OutputUnavailable until the next file can be opened.
        """
        if not self.path:
            return
        if self.rotation.planned is None:
            self.rotation.planned = (self._state.end, self._names.path_at(int(time.time())))
        first, path = self.rotation.planned
        try:
            self._take_back()
            if not self._burst.is_pending and self._state.position >= first:  # else `write` begins it
                self._begin(path, reopen=True)
        except (ConfigError, Damaged, OutputUnavailable) as err:
            log.error("cannot continue with the next file: output=hdf5 cause=%s", err)

    def close(self) -> None:
        """Complete and close the file."""
        try:
            self._take_back()
            if self._burst.is_pending:
                self.recover()
        except (ConfigError, OutputUnavailable) as err:
            log.error("rows of a failed write stay in the file until the next start: path=%s cause=%s", self.path, err)
        if not self._burst.is_pending and self._file is not None and self._file.is_open:
            closed = self._checkpoint()._replace(boot="")
            try:
                if self._close_file():
                    closed.save(self._state, self._state.position)
            except OutputUnavailable as err:
                log.warning("clean end not noted: output=hdf5 cause=%s", err)
        self._close_file()
        self._burst.end()
        self._joined = (), []

    # -- the file --

    def _state_of_file(self, saved: Checkpoint) -> FileState:
        """Return the state of the file, from the checkpoint and later failures."""
        if not self.path:
            return FileState.UNNAMED
        if saved.file == self.path:
            is_there = os.path.lexists(self.path)
            if saved.plan and (saved.plan == REPLAY or is_there or os.path.lexists(saved.aside)):
                return FileState.REPLACING
            if not is_there and saved.tables != 0:
                return FileState.GONE
            if self._suspicion.is_unfit:
                return FileState.UNFIT
            if self._burst.is_pending or self._suspicion.is_doubted or self._was_not_closed(saved):
                return FileState.DOUBTFUL
        return FileState.OPEN if self._file is not None and self._file.is_open else FileState.CLOSED

    def _was_not_closed(self, saved: Checkpoint) -> bool:
        """Return whether the machine restarted while the file was open: unsynced data may be lost."""
        return bool(saved.boot) and saved.boot != self._boot

    def _checkpoint(self, undo: Undo | None = None, tails: Tails | None = None) -> Checkpoint:
        """Return the checkpoint of the open file, with the rollback data of a burst."""
        assert self._file is not None
        saved = Checkpoint.load(self._state)
        return Checkpoint(
            until=saved.until,
            places=saved.places,
            file=self.path,
            inode=self._file.inode,
            first=self._first,
            tables=self._file.tables,
            undo=undo or {},
            tails=tails or {},
            boot=self._boot,
        )

    def _open_file(self) -> None:
        """Open or create the file at `path`, and save its checkpoint.

        Raises:
            ConfigError, Damaged: as `Hdf5File.open`.
            OutputUnavailable: a reader has locked the file, or it is open and its checkpoint cannot be saved.
        """
        file = self._file or Hdf5File(self.path, self._filters)
        self._file = None
        file.open()
        self._file = file
        saved = Checkpoint.load(self._state)
        if file.created:
            self._first = None if saved.until > self._state.position else self._state.position
        elif saved.file != self.path:
            self._first = None  # its rows do not come from the journal
        elif saved.inode in (0, file.inode):
            file.tables = saved.tables
        else:  # another file is in its place
            self._first = None
        if saved.file != self.path or file.created:
            self._checkpoint().save(self._state, self._state.position)

    def _close_file(self) -> bool:
        """Close the file, if any; return whether that succeeded."""
        file, self._file = self._file, None
        return file is None or file.close(keep_tails=self._burst.is_pending)

    def _forget_file(self) -> None:
        """Give up a moved or removed file: the next record begins another one."""
        log.warning("file was moved or removed, continuing with the next one: path=%s", self.path)
        self._close_file()
        self._burst.end()
        self.rotation.planned = None
        self.path = self._names.path_at(0) if self._names.is_fixed else ""
        if self.path:
            self._save_new(self.path)

    def _save_new(self, path: str) -> None:
        """Save the path of the next file before its creation, so that each existing file is known."""
        position, saved = self._state.position, Checkpoint.load(self._state)
        if saved.until > position:  # some of their rows went to the former file
            Checkpoint(path, tables=0, until=saved.until, places=saved.places).save(self._state, position)
        else:
            Checkpoint(path, first=position, tables=0).save(self._state, position)

    def _begin(self, path: str, reopen: bool = False) -> None:
        """Complete the file and go on with the one at `path`, if that is another one or with `reopen`."""
        if path != self.path:
            log.info("next file: path=%s former=%s", path, self.path)
            self._close_file()
            if not os.path.lexists(path):
                self._save_new(path)
            self.path, self._first, reopen = path, self._state.position, True
            self._expiry.is_due = True
        self.rotation.begun(path)
        if reopen:
            self._close_file()
            self._open_file()

    def _prepare(self, record: JournalRecord) -> None:
        """Bring the file to OPEN, and roll back the last burst if it failed."""
        try:
            self._take_back()
            if self._suspicion.is_doubted:
                self._close_file()
            if self._file is not None and self._file.is_open and self._file.was_moved():
                self._forget_file()
            while self.path and (self._file is None or not self._file.is_open):
                self.recover()
            if not self.path:
                self._begin(self._names.path_at(received_s(record)))
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err
        except OSError as err:
            raise OutputUnavailable(f"cannot look at {self.path}: {cause(err)}") from err

    def _rotate(self, record: JournalRecord) -> None:
        """Begin the next file if this record is its first one."""
        try:
            while path := self.rotation.next_path(self.path, record):
                self._begin(path)
            if self._file is not None and self.rotation.is_full(self._file.size_bytes):
                self._begin(self._names.path_at(received_s(record)))
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err

    # -- a burst --

    def _rows(self, records: Sequence[JournalRecord]) -> list[RowsByJob]:
        """Return the rows of records, kept until all of them are written."""
        key = records[0].number, records[-1].number, len(records)
        if self._joined[0] != key:
            batches = [batch for record in records for batch in record.batches]
            self._joined = key, [columns.by_job() for columns in join(batches)]
        return self._joined[1]

    def _part(self, whole: Sequence[RowsByJob], first: int, is_whole: bool) -> tuple[list[RowsByJob], int, int]:
        """Return the rows of one burst, of jobs with a place from `first` on, the place of its end, and its size."""
        stop = PLACES
        while True:
            parts = [part.between(first, stop) for part in whole]
            size = sum([p.starts[-1] * p.batch.schema.row_bytes + TABLE_BYTES * len(p.jobs) for p in parts])
            pieces = self._pace.pieces(size)
            # jobs can share a place: a sender may choose them so
            if pieces <= 1 or is_whole or stop - first <= 1 or max([len(p.jobs) for p in parts]) <= 1:
                return parts, stop, size
            stop = first + max(1, (stop - first) // pieces)

    def _write(self, records: Sequence[JournalRecord], first: int, until: int) -> None:
        """Append rows of records to the file as one burst: of jobs with a place from `first` on, as fit into it.

        Args:
            records: the first ones that are not written, or partly.
            first: end of the places written before.
            until: end of the records written up to there.
        """
        file = self._file
        assert file is not None  # `_prepare` opened it
        rows = self._rows(records)
        began = self._monotonic()
        parts, stop, size = self._part(rows, first, is_whole=records[-1].number + 1 < until)
        try:
            undo, tails = file.plan(parts)
            took_s = self._monotonic() - began
            self._burst.begin(self._checkpoint(undo, tails))
            began = self._monotonic()
            file.make_tables(parts, undo)
            for part in parts:
                file.append(part)
            took_s += self._monotonic() - began
            file.flush()
            file.sync()
            position = self._state.position
            if stop == PLACES:
                self._joined = (), []
                position = records[-1].number + 1
                until, stop = (until, first) if position < until else (0, 0)
            done = self._checkpoint(dict.fromkeys(file.replaced))._replace(until=until, places=stop)
            self._burst.commit(position, done)
        except BaseException as err:
            self._joined = (), []
            self._roll_back()
            if isinstance(err, STORAGE_ERRORS):
                if not is_of_system(err) and self._suspicion.blames(records):
                    raise
                raise OutputUnavailable(f"cannot write to {self.path}: {cause(err)}") from err
            if isinstance(err, Exception) and not isinstance(err, OutputUnavailable):
                self._suspect_file(records, err)
            raise
        self._burst.end()
        self._pace.note(size, took_s)
        self._suspicion.written()
        self._counts["values_left_out"] += file.left_out[0]
        self._counts["rows_left_out"] += file.left_out[1]
        if file.replaced:
            self._drop_replaced(file, done)

    def _drop_replaced(self, file: Hdf5File, saved: Checkpoint) -> None:
        """Remove the former versions of widened tables, in a burst of its own with a saved checkpoint.

        Raises:
            OutputUnavailable: neither the removal nor its rollback is possible; the rows are written.
        """
        self._burst.resume(saved)
        try:
            file.drop_replaced()
        except Exception as err:  # see `_take_back`; the rows are written, so none may be dropped
            self._roll_back()  # removes the former tables, too
            if self._burst.is_pending:
                raise OutputUnavailable(f"former tables not removed from {self.path}: {cause(err)}") from err
        else:
            self._burst.end()

    def _roll_back(self) -> None:
        """Roll back a failed burst now, or else before the next use of the file."""
        try:
            self._take_back()
        except (ConfigError, OutputUnavailable) as err:
            log.warning("failed write not undone yet: path=%s cause=%s", self.path, err)

    def _take_back(self) -> None:
        """Truncate tables to their rows before a failed burst, and remove tables created by it.

        Raises:
            OutputUnavailable: not possible now; the file is closed.
        """
        if not self._burst.is_pending:
            return
        self._burst.revoke()
        if self._file is None or not self._file.is_open:
            self._suspicion.is_doubted = True
            return
        try:
            self._burst.restore(self._file)
        except Exception as err:  # after a failure of HDF5, PyTables raises anything
            self._suspicion.is_doubted = True
            self._close_file()
            raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err

    # -- damage --

    def _suspect_file(self, records: Sequence[JournalRecord], err: Exception) -> None:
        """Check whether the file, and not a defect of Colmet, caused an unexpected failure to write.

        A defect is raised by the caller: its record is then searched in parts of these, without another file check.

        Raises:
            OutputUnavailable: the file was the cause and has been replaced, or it cannot be checked now.
        """
        if self._suspicion.clears(records):
            return
        self._suspicion.is_doubted = True
        damaged = self._counts["files_damaged"]
        self.recover()
        if self._counts["files_damaged"] > damaged:
            raise OutputUnavailable(f"{self.path} was damaged and has been replaced") from err
        self._suspicion.clear(records)

    def _look_through(self, saved: Checkpoint) -> None:
        """Check that the file is sound, and roll back an interrupted burst.

        Raises:
            Damaged: the file is not sound.
            ConfigError, OutputUnavailable: not possible now.
        """
        if self._file is not None and self._file.is_open:
            self._close_file()
        log.warning("file was not closed, it is checked: path=%s", self.path)
        verify(self.path, saved.tables, saved.undo, saved.tails)
        self._open_file()
        assert self._file is not None
        if self._burst.is_pending:
            try:
                self._file.restore(saved.undo, saved.tails)
            except Damaged:
                raise
            except Exception as err:  # as in `_take_back`
                self._close_file()
                if isinstance(err, tables.HDF5ExtError) and not is_of_system(err):
                    raise Damaged(f"{self.path}: {cause(err)}") from err
                raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
            log.warning("interrupted write undone: path=%s tables=%d", self.path, len(saved.undo))
        self._file.count()
        self._checkpoint().save(self._state, self._state.position)
        self._burst.end()

    def _set_aside(self, saved: Checkpoint, why: str) -> None:
        """Plan and carry out the replacement of a damaged file."""
        self._close_file()
        self._suspicion.replaced()
        self._counts["files_damaged"] += 1
        planned = replacement.plan(self.path, saved, self._state)
        log.error("file is damaged: path=%s cause=%s", self.path, why)
        planned.save(self._state, self._state.position)
        self._replace(planned)

    def _replace(self, planned: Checkpoint) -> None:
        """Carry out the plan saved by `_set_aside`, or its remaining steps."""
        self._close_file()
        self._suspicion.replaced()
        try:
            replaced = replacement.carry_out(self.path, planned, self._state)
            self._counts["rows_lost"] += replaced.rows_lost
            self._first = replaced.checkpoint.first
            replaced.checkpoint.save(self._state, replaced.position)
            self._burst.end()
            self._open_file()
        except (OSError, ConfigError, Damaged) as err:
            raise OutputUnavailable(f"cannot replace the damaged {self.path}: {cause(err)}") from err
        assert self._file is not None
        self._file.count()
        self._checkpoint().save(self._state, self._state.position)


def _not_writable(path: str, err: OSError) -> ConfigError:
    why = reason_with_remedy(path, cause(err))
    return ConfigError(
        f"{path}: cannot be opened for writing: {why}; check its owner, rights and disk, or change --hdf5-filepath"
    )
