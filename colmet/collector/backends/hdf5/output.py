"""Output to HDF5: one group for each job, one table for each kind of metric, as Colmet 0.6 wrote them.

Recovery. Before a burst of rows, the row counts of its tables are saved beside the journal's position, and copies of
the chunks that HDF5 rewrites go to a file of their own; after the burst the file is synced, and the next position is
saved. A burst that fails or is killed is undone: its tables are cut to these counts, the tables that it made are
removed, and the journal gives its records again. After a kill, a power cut or an error of HDF5, another process, which
may crash on a torn file, first finds out whether all tables are there and have the rows before the burst. If not, the
file is set aside, and a new one of its name is filled from the journal, with each record since the beginning of the
file that the journal still has. Older rows are in the file set aside alone, which stays readable as far as HDF5 opens
it, and is a failure in the status until it is moved or removed.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.hdf5 import isolated
from colmet.collector.backends.hdf5 import options as hdf5_options
from colmet.collector.backends.hdf5.checkpoint import Checkpoint, Undo, boot_id, last_file
from colmet.collector.backends.hdf5.expiry import Expiry
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.library import STORAGE_ERRORS, cause, is_of_system, tables
from colmet.collector.backends.hdf5.rotation import ASIDE, FileNames, Rotation, received_s
from colmet.collector.columns import RowsByJob, join
from colmet.collector.journal.output_state import OutputState
from colmet.common.config.cli import Options
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.host.files import check_writable, make, reason_with_remedy, sync_directory

log = logging.getLogger(__name__)

# Share of the time spent writing: the fewer and larger the appends, the cheaper a row. Small sites are not affected:
# they stay well within this share, and write whenever rows have waited for the maximum delay.
SHARE = 0.005
BURSTS_S = 2.0  # no burst of a call begins later, so that a stop costs little time
MAX_NEW_TABLES = 4096  # of a burst of several records: some seconds


class Hdf5Output(OutputBackend):
    """Bulk output of rows to the tables of their job and kind.

    `recover` brings the file from any state to open; `write` keeps it there or leaves it to the next `recover`::

        closed --- opened, created ---> open --- rotation, SIGHUP ---> closed
        closed, open --- a burst is not undone, HDF5 fails, the machine went down ---> doubtful
        doubtful --- whole, the burst is undone ---> open
        doubtful, closed --- torn ---> set aside: a new file is begun and filled from the journal ---> open
        any --- moved, removed by others ---> closed, and the next record or the fixed path names it

    Args:
        path: the only file if it ends in ``.hdf5``; otherwise files are ``<path>.<epoch seconds>.hdf5``, named by the
            start of their time of receipt.
        complib: compression library, as `options.complib` returns it.
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
        rotate_s: int = 0,
        rotate_bytes: int = 0,
        keep_s: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # dropped for lack of a column or a table; torn files set aside
        self._counts = dict.fromkeys(("values_left_out", "rows_left_out", "files_damaged"), 0)
        self.path = ""
        self._names = FileNames(path)
        self.rotation = Rotation(self._names, rotate_s, rotate_bytes)
        self._expiry = Expiry(self._names, keep_s)
        self._filters = tables.Filters(complevel, complib)
        self._boot = boot_id()
        self._state = OutputState("", "", 0, 0)
        self._pending: Checkpoint | None = None  # of a burst that may have to be undone
        self._may_be_saved = False  # whether that burst may be saved as done
        self._is_doubted = False  # whether the file has to be checked before its next use
        self._refused = -1, -1  # first and last record that HDF5 or Colmet failed to write, though the disk works
        self._refusals = 0  # of these records
        self._monotonic = monotonic
        self._file: Hdf5File | None = None
        self._first = 0  # see `Checkpoint`

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
            rotate_s=rotate.get("s", 0),
            rotate_bytes=rotate.get("bytes", 0),
            keep_s=options.hdf5_keep,
        )

    def counters(self) -> dict[str, int]:
        """Return the counts of dropped values and rows, of torn files, and of removed files."""
        return {**self._counts, **self._expiry.counts}

    def details(self) -> Mapping[str, Any]:
        """Return the torn files that were set aside and are still there, as `set_aside`."""
        return {"set_aside": self._names.set_aside()}

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
        self._state, self._pending = state, None
        self.rotation.planned = None
        self._expiry.is_due = True
        saved = Checkpoint.load(state)
        new = self._names.path_at(int(time.time()))
        try:
            make(os.path.dirname(new))
        except OSError as err:
            raise _not_writable(new, err) from err
        self.path = new
        under_way = bool(saved.undo or saved.aside or self._was_not_closed(saved))
        there = bool(saved.file) and (os.path.lexists(saved.file) or bool(saved.aside))
        if saved.file and not there:
            log.warning("file was moved or removed, continuing with the next one: path=%s", saved.file)
        backlog = state.position < state.end
        is_ours = self._names.is_ours(saved.file)
        if there and (under_way or saved.file == new or (backlog and is_ours)):
            self.path = saved.file
            if saved.undo:
                self._pending, self._may_be_saved = saved, False
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
        """Bring the file to open: undo a killed burst, set a torn file aside; or raise OutputUnavailable."""
        if not self.path:
            return
        saved = Checkpoint.load(self._state)
        try:
            if saved.file == self.path and saved.aside:
                self._begin_again(saved)
            elif saved.file == self.path and saved.tables != 0 and not os.path.lexists(self.path):
                self._forget_file()
                return
            else:
                self._make_ready(saved)
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err
        self._is_doubted = False
        self._expiry.remove(self.path)

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Append rows and flush, in bursts; none begins after `BURSTS_S`, and the caller passes the other rows again.

        Raises:
            OutputUnavailable: the disk is full or similar; appended rows have been or will be undone.
        """
        try:
            before = self._state.position
            self._prepare(records[0])
            if self._state.position != before:
                raise OutputUnavailable(f"{self.path} is filled again from the journal")
            began = self._monotonic()
            while records and self._monotonic() - began < BURSTS_S:
                self._rotate(records[0])
                records = records[self._write(records[: self.rotation.count(self.path, records)]) :]
        except OutputUnavailable:
            self._expiry.is_due = True  # a full disk may have files that are too old by now
            raise
        finally:
            self._expiry.remove(self.path)

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
            self._undo_burst()
            if self._pending is None and self._state.position >= first:  # else `write` begins it
                self._begin(path, reopen=True)
        except (ConfigError, Damaged, OutputUnavailable) as err:
            log.error("cannot continue with the next file: output=hdf5 cause=%s", err)

    def close(self) -> None:
        """Complete and close the file."""
        try:
            self._undo_burst()
            if self._pending is not None:
                self.recover()
        except (ConfigError, OutputUnavailable) as err:
            log.error("rows of a failed write stay in the file until the next start: path=%s cause=%s", self.path, err)
        if self._pending is None and self._file is not None and self._file.is_open:
            closed = self._checkpoint()._replace(boot="")
            try:
                if self._close_file():
                    closed.save(self._state, self._state.position)
            except OutputUnavailable as err:
                log.warning("clean end not noted: output=hdf5 cause=%s", err)
        self._close_file()
        self._pending = None

    # -- the file --

    def _was_not_closed(self, saved: Checkpoint) -> bool:
        """Return whether the machine restarted while the file was open: unsynced data may be lost."""
        return bool(saved.boot) and saved.boot != self._boot

    def _checkpoint(self, undo: Undo | None = None, tails: Mapping[str, int] | None = None) -> Checkpoint:
        """Return the checkpoint of the open file, with what undoes a burst."""
        file = self._file
        assert file is not None and file.jobs is not None
        return Checkpoint(
            file=self.path,
            inode=file.inode,
            first=self._first,
            tables=file.jobs.count,
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
        is_known = saved.file == self.path and not file.created and saved.inode in (0, file.inode)
        self._first = saved.first if is_known else self._state.position  # earlier rows do not come from the journal
        assert file.jobs is not None
        if is_known:
            file.jobs.count = saved.tables
        if saved.file != self.path or file.created or saved.aside:
            self._checkpoint().save(self._state, self._state.position)

    def _close_file(self) -> bool:
        """Close the file, if any; return whether that succeeded."""
        file, self._file = self._file, None
        return file is None or file.close(keep_tails=self._pending is not None)

    def _forget_file(self) -> None:
        """Give up a moved or removed file: the next record begins another one."""
        log.warning("file was moved or removed, continuing with the next one: path=%s", self.path)
        self._close_file()
        self._pending = None
        self.rotation.planned = None
        self.path = self._names.path_at(0) if self._names.is_fixed else ""
        if self.path:
            self._save_new(self.path)

    def _save_new(self, path: str) -> None:
        """Save the path of the next file before its creation, so that each existing file is known."""
        position = self._state.position
        Checkpoint(path, first=position, tables=0).save(self._state, position)

    def _begin(self, path: str, reopen: bool = False) -> None:
        """Complete the file and go on with the one at `path`, if that is another one or with `reopen`."""
        if path != self.path:
            log.info("next file: path=%s former=%s", path, self.path)
            self._close_file()
            if not os.path.lexists(path):
                self._save_new(path)
            self.path, reopen = path, True
            self._expiry.is_due = True
        self.rotation.begun(path)
        if reopen:
            self._close_file()
            self._open_file()

    def _prepare(self, record: JournalRecord) -> None:
        """Bring the file to open, and undo the last burst if it failed."""
        try:
            self._undo_burst()
            if self._is_doubted:
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

    def _write(self, records: Sequence[JournalRecord]) -> int:
        """Append rows of the first of these records to the file as one burst; return the number of these records."""
        file = self._file
        assert file is not None and file.jobs is not None  # `_prepare` opened it
        try:
            parts = _rows(records)
            undo, tails = file.plan(parts)
            new = sum([rows is None for rows in undo.values()])
            if new > MAX_NEW_TABLES and len(records) > 1:
                records = records[: max(1, len(records) * MAX_NEW_TABLES // new)]
                parts = _rows(records)
                undo, tails = file.plan(parts)
            checkpoint = self._checkpoint(undo, tails)
            checkpoint.save(self._state, self._state.position)
            self._pending, self._may_be_saved = checkpoint, False
            file.make_tables(parts, undo)
            for part in parts:
                file.append(part)
            file.flush()
            file.sync()
            done = self._checkpoint(dict.fromkeys(file.jobs.replaced))
            self._may_be_saved = True
            done.save(self._state, records[-1].number + 1)
        except BaseException as err:
            self._undo_now()
            if isinstance(err, Exception) and not isinstance(err, OutputUnavailable):
                self._blame_file(records, err)
            raise
        self._pending = None
        self._counts["values_left_out"] += file.jobs.left_out[0]
        self._counts["rows_left_out"] += file.jobs.left_out[1]
        if file.jobs.replaced:
            self._drop_replaced(file, done)
        return len(records)

    def _drop_replaced(self, file: Hdf5File, saved: Checkpoint) -> None:
        """Remove the former versions of widened tables, in a burst of its own with a saved checkpoint.

        Raises:
            OutputUnavailable: neither the removal nor its undoing is possible; the rows are written.
        """
        self._pending, self._may_be_saved = saved, False
        try:
            file.drop_replaced()
        except Exception as err:  # see `_undo_burst`; the rows are written, so none may be dropped
            self._undo_now()  # removes the former tables, too
            if self._pending is not None:
                raise OutputUnavailable(f"former tables not removed from {self.path}: {cause(err)}") from err
        else:
            self._pending = None

    def _undo_now(self) -> None:
        """Undo a failed burst now, or else before the next use of the file."""
        try:
            self._undo_burst()
        except (ConfigError, OutputUnavailable) as err:
            log.warning("failed write not undone yet: path=%s cause=%s", self.path, err)

    def _undo_burst(self) -> None:
        """Cut tables to their rows before a failed burst, and remove tables created by it.

        Raises:
            OutputUnavailable: not possible now; the file is closed.
        """
        pending = self._pending
        if pending is None:
            return
        if self._may_be_saved:
            pending.save(self._state, self._state.position)
            self._may_be_saved = False
        if self._file is None or not self._file.is_open:
            self._is_doubted = True
            return
        try:
            self._file.undo(pending.undo, pending.tails)
        except Exception as err:  # after a failure of HDF5, PyTables raises anything
            self._is_doubted = True
            self._close_file()
            raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
        self._pending = None

    def _blame_file(self, records: Sequence[JournalRecord], err: Exception) -> None:
        """Raise OutputUnavailable for a failure to write, unless these records are to blame.

        The system failed; or else HDF5 or Colmet did. Then the file is checked, and the records are tried again. If
        HDF5 fails again, the file is set aside; if these records still fail, the caller drops those that do.
        """
        unavailable = OutputUnavailable(f"cannot write to {self.path}: {cause(err)}")
        if is_of_system(err):
            raise unavailable from err
        first, last = records[0].number, records[-1].number
        if last < self._refused[0] or self._refused[1] < first:
            self._refused, self._refusals = (first, last), 0
        self._refusals += 1
        if self._refusals <= (2 if isinstance(err, STORAGE_ERRORS) else 1):
            self._is_doubted = True
            raise unavailable from err

    # -- recovery --

    def _make_ready(self, saved: Checkpoint) -> None:
        """Open the file, which is checked before if it is doubtful, or set aside if it is torn."""
        is_known = saved.file == self.path
        is_doubtful = is_known and (self._pending is not None or self._is_doubted or self._was_not_closed(saved))
        try:
            if is_doubtful and self._refusals == 2:
                raise Damaged(f"{self.path}: all of it can be read, but HDF5 cannot write to it")
            if is_doubtful:
                self._look_through(saved)
            elif self._file is None or not self._file.is_open:
                self._open_file()
            assert self._file is not None
            self._file.count()
        except Damaged as err:
            if not is_known:
                raise
            self._set_aside(saved, str(err))

    def _look_through(self, saved: Checkpoint) -> None:
        """Check that the file is whole, and undo an interrupted burst.

        Raises:
            Damaged: the file is torn.
            ConfigError, OutputUnavailable: not possible now.
        """
        self._close_file()
        log.warning("file was not closed, it is checked: path=%s", self.path)
        isolated.check(self.path, saved.tables, saved.undo, saved.tails)
        self._open_file()
        assert self._file is not None
        if self._pending is not None:
            try:
                self._file.undo(saved.undo, saved.tails)
            except Damaged:
                raise
            except Exception as err:  # as in `_undo_burst`
                self._close_file()
                if isinstance(err, tables.HDF5ExtError) and not is_of_system(err):
                    raise Damaged(f"{self.path}: {cause(err)}") from err
                raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
            log.warning("interrupted write undone: path=%s tables=%d", self.path, len(saved.undo))
        self._file.count()
        self._checkpoint().save(self._state, self._state.position)
        self._pending = None

    def _set_aside(self, saved: Checkpoint, why: str) -> None:
        """Set a torn file aside, and read the journal again. The state is saved first, for a kill in between."""
        self._close_file()
        self._counts["files_damaged"] += 1
        log.error("file is damaged: path=%s cause=%s", self.path, why)
        first = min(max(saved.first, self._state.oldest), self._state.position)
        planned = Checkpoint(self.path, first=first, tables=0, aside=_unused(f"{self.path}{ASIDE}"))
        log.error(
            "damaged file set aside, a new one is filled from the journal: path=%s aside=%s records=%d gone=%d; rows "
            "that are gone from the journal are in the latter alone: read them with `colmet extract`, then move it",
            *(self.path, planned.aside, self._state.position - first, max(0, first - saved.first)),
        )
        planned.save(self._state, first)
        self._pending = None
        self._begin_again(planned)

    def _begin_again(self, planned: Checkpoint) -> None:
        """Move a torn file aside, unless that is done, and begin a new one."""
        self._close_file()
        try:
            if os.path.lexists(self.path) and not os.path.lexists(planned.aside):
                os.rename(self.path, planned.aside)
                sync_directory(os.path.dirname(self.path))
            self._open_file()
        except OSError as err:
            raise OutputUnavailable(f"cannot replace the damaged {self.path}: {cause(err)}") from err


def _rows(records: Sequence[JournalRecord]) -> list[RowsByJob]:
    """Return the rows of records by job, one element for each schema."""
    return [columns.by_job() for columns in join([batch for record in records for batch in record.batches])]


def _unused(path: str) -> str:
    """Return this path, with a number appended if it exists."""
    unused, number = path, 0
    while os.path.lexists(unused):
        number += 1
        unused = f"{path}.{number}"
    return unused


def _not_writable(path: str, err: OSError) -> ConfigError:
    why = reason_with_remedy(path, cause(err))
    return ConfigError(
        f"{path}: cannot be opened for writing: {why}; check its owner, rights and disk, or change --hdf5-filepath"
    )
