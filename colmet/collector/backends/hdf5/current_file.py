"""The file that the output for HDF5 writes to: its bursts, their undoing, and its recovery.

Before a burst of rows, the row counts of its tables are saved beside the journal's position, and copies of
the chunks that HDF5 rewrites go to a file of their own; after the burst the file is synced, and the next position is
saved. A burst that fails or is killed is undone: its tables are cut to these counts, the tables that it made are
removed, and the journal gives its records again. After a kill, a power cut or an error of HDF5, another process, which
may crash on a torn file, first finds out whether all tables are there and have the rows before the burst. If not, the
file is set aside, and a new one of its name is filled from the journal, with each record since the beginning of the
file that the journal still has. Older rows are in the file set aside alone, which stays readable as far as HDF5 opens
it, and is a failure in the status until it is moved or removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5 import check
from colmet.collector.backends.hdf5.checkpoint import Checkpoint, Undo, boot_id
from colmet.collector.backends.hdf5.files import ASIDE
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.library import STORAGE_ERRORS, cause, is_of_system, tables
from colmet.collector.columns import RowsByJob, join
from colmet.collector.journal.output_state import OutputState
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.host.files import sync_directory

log = logging.getLogger(__name__)

MAX_NEW_TABLES = 4096  # of a burst of several records: some seconds


class CurrentFile:
    """The file that an output writes to, its bursts, and their undoing.

    `make_ready` brings it from any state to open; `write` keeps it there or leaves it to the next `make_ready`::

        closed --- opened, created ---> open --- rotation, SIGHUP ---> closed
        closed, open --- a burst is not undone, HDF5 fails, the machine went down ---> doubtful
        doubtful --- whole, the burst is undone ---> open
        doubtful, closed --- torn ---> set aside: a new file is begun and filled from the journal ---> open
        any --- moved, removed by others ---> closed, and the next record or the fixed path names it

    Attributes:
        path: of the current or next file; empty if the next record names it.
        state: of the output.
        file: None unless it is locked or open.
        pending: of a burst that may have to be undone.
        is_doubted: whether the file has to be checked before its next use.
        counts: values and rows dropped for lack of a column or a table; torn files set aside.
    """

    def __init__(self, filters: Any) -> None:
        self.path = ""
        self.state = OutputState("", "", 0, 0)
        self.file: Hdf5File | None = None
        self.pending: Checkpoint | None = None
        self.is_doubted = False
        self.counts = dict.fromkeys(("values_left_out", "rows_left_out", "files_damaged"), 0)
        self._filters = filters
        self._boot = boot_id()
        self._may_be_saved = False  # whether the pending burst may be saved as done
        self._refused = -1, -1  # first and last record that HDF5 or Colmet failed to write, though the disk works
        self._refusals = 0  # of these records
        self._first = 0  # see `Checkpoint`

    @property
    def is_open(self) -> bool:
        """Return whether rows can be written."""
        return self.file is not None and self.file.is_open

    def restart(self, state: OutputState) -> Checkpoint:
        """Continue from a state, with no file; return what is saved there."""
        self.state, self.pending, self._may_be_saved = state, None, False
        return Checkpoint.load(state)

    def was_not_closed(self, saved: Checkpoint) -> bool:
        """Return whether the machine restarted while the file was open: unsynced data may be lost."""
        return bool(saved.boot) and saved.boot != self._boot

    def lock(self) -> None:
        """Lock the file, if it exists, until it is opened; its errors are those of `Hdf5File.lock`."""
        if os.path.lexists(self.path):
            self.file = Hdf5File(self.path, self._filters)
            self.file.lock()

    def note_clean_end(self) -> None:
        """Close the file, and note that all of it is on disk; OutputUnavailable if it cannot be noted."""
        closed = self._checkpoint()._replace(boot="")
        if self.close():
            closed.save(self.state, self.state.position)

    def _checkpoint(self, undo: Undo | None = None, tails: Mapping[str, int] | None = None) -> Checkpoint:
        """Return the checkpoint of the open file, with what undoes a burst."""
        file = self.file
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

    def open(self) -> None:
        """Open or create the file at `path`, and save its checkpoint.

        Raises:
            ConfigError, Damaged: as `Hdf5File.open`.
            OutputUnavailable: a reader has locked the file, or it is open and its checkpoint cannot be saved.
        """
        file = self.file or Hdf5File(self.path, self._filters)
        self.file = None
        file.open()
        self.file = file
        saved = Checkpoint.load(self.state)
        is_known = saved.file == self.path and not file.created and saved.inode in (0, file.inode)
        self._first = saved.first if is_known else self.state.position  # earlier rows do not come from the journal
        assert file.jobs is not None
        if is_known and saved.inode:  # else another file may be there since the path was saved: it is counted
            file.jobs.count = saved.tables
        if saved.file != self.path or file.created or saved.aside:
            self._checkpoint().save(self.state, self.state.position)

    def close(self) -> bool:
        """Close the file, if any; return whether that succeeded."""
        file, self.file = self.file, None
        return file is None or file.close(keep_tails=self.pending is not None)

    # -- a burst --

    def write(self, records: Sequence[JournalRecord]) -> int:
        """Append rows of the first of these records to the file as one burst; return the number of these records."""
        file = self.file
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
            checkpoint.save(self.state, self.state.position)
            self.pending, self._may_be_saved = checkpoint, False
            file.make_tables(parts, undo)
            for part in parts:
                file.append(part)
            file.flush()
            file.sync()
            done = self._checkpoint(dict.fromkeys(file.jobs.replaced))
            self._may_be_saved = True
            done.save(self.state, records[-1].number + 1)
        except BaseException as err:
            self._undo_now()
            if isinstance(err, Exception) and not isinstance(err, OutputUnavailable):
                self._blame_file(records, err)
            raise
        self.pending = None
        if records[-1].number >= self._refused[1]:  # they are written or dropped: what fails later is news
            self._refused, self._refusals = (-1, -1), 0
        self.counts["values_left_out"] += file.jobs.left_out[0]
        self.counts["rows_left_out"] += file.jobs.left_out[1]
        if file.jobs.replaced:
            self._drop_replaced(file, done)
        return len(records)

    def _drop_replaced(self, file: Hdf5File, saved: Checkpoint) -> None:
        """Remove the former versions of widened tables, in a burst of its own with a saved checkpoint.

        Raises:
            OutputUnavailable: neither the removal nor its undoing is possible; the rows are written.
        """
        self.pending, self._may_be_saved = saved, False
        try:
            file.drop_replaced()
        except Exception as err:  # see `undo_burst`; the rows are written, so none may be dropped
            self._undo_now()  # removes the former tables, too
            if self.pending is not None:
                raise OutputUnavailable(f"former tables not removed from {self.path}: {cause(err)}") from err
        else:
            self.pending = None

    def _undo_now(self) -> None:
        """Undo a failed burst now, or else before the next use of the file."""
        try:
            self.undo_burst()
        except (ConfigError, OutputUnavailable) as err:
            log.warning("failed write not undone yet: path=%s cause=%s", self.path, err)

    def undo_burst(self) -> None:
        """Cut tables to their rows before a failed burst, and remove tables created by it.

        Raises:
            OutputUnavailable: not possible now; the file is closed.
        """
        pending = self.pending
        if pending is None:
            return
        if self._may_be_saved:
            pending.save(self.state, self.state.position)
            self._may_be_saved = False
        if self.file is None or not self.file.is_open:
            self.is_doubted = True
            return
        try:
            self.file.undo(pending.undo, pending.tails)
        except Exception as err:  # after a failure of HDF5, PyTables raises anything
            self.is_doubted = True
            self.close()
            raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
        self.pending = None

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
            self.is_doubted = True
            raise unavailable from err

    # -- recovery --

    def make_ready(self, saved: Checkpoint) -> None:
        """Open the file, which is checked before if it is doubtful, or set aside if it is torn."""
        is_known = saved.file == self.path
        is_doubtful = is_known and (self.pending is not None or self.is_doubted or self.was_not_closed(saved))
        try:
            if is_doubtful and self._refusals == 2:
                raise Damaged(f"{self.path}: all of it can be read, but HDF5 cannot write to it")
            if is_doubtful:
                self._look_through(saved)
            elif not self.is_open:
                self.open()
            assert self.file is not None
            self.file.count()
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
        self.close()
        log.warning("file was not closed, it is checked: path=%s", self.path)
        check.check(self.path, saved.tables, saved.undo, saved.tails)
        self.open()
        assert self.file is not None
        if self.pending is not None:
            try:
                self.file.undo(saved.undo, saved.tails)
            except Damaged:
                raise
            except Exception as err:  # as in `undo_burst`
                self.close()
                if isinstance(err, tables.HDF5ExtError) and not is_of_system(err):
                    raise Damaged(f"{self.path}: {cause(err)}") from err
                raise OutputUnavailable(f"cannot undo a failed write in {self.path}: {cause(err)}") from err
            log.warning("interrupted write undone: path=%s tables=%d", self.path, len(saved.undo))
        self.file.count()
        self._checkpoint().save(self.state, self.state.position)
        self.pending = None

    def _set_aside(self, saved: Checkpoint, why: str) -> None:
        """Set a torn file aside, and read the journal again. The state is saved first, for a kill in between."""
        self.close()
        self.counts["files_damaged"] += 1
        log.error("file is damaged: path=%s cause=%s", self.path, why)
        first = min(max(saved.first, self.state.oldest), self.state.position)
        planned = Checkpoint(self.path, first=first, tables=0, aside=_unused(f"{self.path}{ASIDE}"))
        log.error(
            "damaged file set aside, a new one is filled from the journal: path=%s aside=%s records=%d gone=%d; rows "
            "that are gone from the journal are in the latter alone: read them with `colmet extract`, then move it",
            *(self.path, planned.aside, self.state.position - first, max(0, first - saved.first)),
        )
        planned.save(self.state, first)
        self.pending = None
        self.begin_again(planned)

    def begin_again(self, planned: Checkpoint) -> None:
        """Move a torn file aside, unless that is done, and begin a new one."""
        self.close()
        try:
            if os.path.lexists(self.path) and not os.path.lexists(planned.aside):
                os.rename(self.path, planned.aside)
                sync_directory(os.path.dirname(self.path))
            self.open()
        except OSError as err:
            raise OutputUnavailable(f"cannot replace the damaged {self.path}: {cause(err)}") from err


def _rows(records: Sequence[JournalRecord]) -> list[RowsByJob]:
    return [columns.by_job() for columns in join([batch for record in records for batch in record.batches])]


def _unused(path: str) -> str:
    unused, number = path, 0
    while os.path.lexists(unused):
        number += 1
        unused = f"{path}.{number}"
    return unused
