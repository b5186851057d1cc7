"""Output to HDF5: one group for each job, one table for each kind of metric, as Colmet 0.6 wrote them."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.hdf5.checkpoint import Checkpoint, last_file
from colmet.collector.backends.hdf5.current_file import CurrentFile
from colmet.collector.backends.hdf5.files import Expiry, FileNames, Rotation, add_options, check_options, received_s
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.library import cause, tables
from colmet.collector.journal.output_state import OutputState
from colmet.common.config.cli import Options
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.host.files import check_writable, make, reason_with_remedy

log = logging.getLogger(__name__)

# Share of the time spent writing: the fewer and larger the appends, the cheaper a row. Small sites are not affected:
# they stay well within this share, and write whenever rows have waited for the maximum delay.
SHARE = 0.005
BURSTS_S = 2.0  # no burst of a call begins later, so that a stop costs little time


class Hdf5Output(OutputBackend):
    """Bulk output of rows to the tables of their job and kind.

    Args:
        path: the only file if it ends in ``.hdf5``; otherwise files are ``<path>.<epoch seconds>.hdf5``, named by the
            start of their time of receipt.
        complib: compression library, as `files.complib` returns it.
        rotate_s: begin a file at each multiple of this period since the epoch; 0 for never.
        rotate_bytes: begin a file when one has reached this size; 0 for never.
        keep_s: remove files whose last row is older; 0 for never.
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
        self._current = CurrentFile(tables.Filters(complevel, complib))
        self._names = FileNames(path)
        self.rotation = Rotation(self._names, rotate_s, rotate_bytes)
        self._expiry = Expiry(self._names, keep_s)
        self._monotonic = monotonic

    @property
    def path(self) -> str:
        """Return the path of the current or next file; empty if the next record names it."""
        return self._current.path

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that begin with --hdf5."""
        add_options(parser)

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Hdf5Output | None:
        """Return the output, or None without --hdf5-filepath; ConfigError for invalid options."""
        if options.hdf5_filepath is None:
            return None
        rotate = check_options(options)
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
        return {**self._current.counts, **self._expiry.counts}

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
        current = self._current
        saved = current.restart(state)
        self.rotation.planned = None
        self._expiry.is_due = True
        new = self._names.path_at(int(time.time()))
        try:
            make(os.path.dirname(new))
        except OSError as err:
            raise _not_writable(new, err) from err
        current.path = new
        under_way = bool(saved.undo or saved.aside or current.was_not_closed(saved))
        there = bool(saved.file) and (os.path.lexists(saved.file) or bool(saved.aside))
        if saved.file and not there:
            log.warning("file was moved or removed, continuing with the next one: path=%s", saved.file)
        backlog = state.position < state.end
        is_ours = self._names.is_ours(saved.file)
        if there and (under_way or saved.file == new or (backlog and is_ours)):
            current.path = saved.file
            if saved.undo:
                current.pending = saved
            if saved.file != new:
                self.rotation.planned = (state.end if is_ours else 0, new)
        elif backlog and not self._names.is_fixed:
            current.path = ""  # named by its first record
            return
        try:
            if current.path == saved.file and under_way:
                current.lock()
            else:
                current.open()
        except Damaged as err:
            if current.path != saved.file:
                raise ConfigError(f"{err}; move it or change --hdf5-filepath") from err
            log.error("%s", err)
        except OutputUnavailable as err:  # `recover` opens it and saves the checkpoint before anything is written
            log.warning("%s", err)
        except OSError as err:
            raise _not_writable(current.path, err) from err

    def recover(self) -> None:
        """Bring the file to open: undo a killed burst, set a torn file aside; or raise OutputUnavailable."""
        if not self._current.path:
            return
        current = self._current
        saved = Checkpoint.load(current.state)
        try:
            if saved.file == current.path and saved.aside:
                current.begin_again(saved)
            elif saved.file == current.path and saved.tables != 0 and not os.path.lexists(current.path):
                self._forget_file()
                return
            else:
                current.make_ready(saved)
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err
        current.is_doubted = False
        self._expiry.remove(current.path)

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Append rows and flush, in bursts; none begins after `BURSTS_S`, and the caller passes the other rows again.

        Raises:
            OutputUnavailable: the disk is full or similar; appended rows have been or will be undone.
        """
        try:
            before = self._current.state.position
            self._prepare(records[0])
            if self._current.state.position != before:
                raise OutputUnavailable(f"{self._current.path} is filled again from the journal")
            began = self._monotonic()
            while records and self._monotonic() - began < BURSTS_S:
                self._rotate(records[0])
                records = records[self._current.write(records[: self.rotation.count(self._current.path, records)]) :]
        except OutputUnavailable:
            self._expiry.is_due = True  # a full disk may have files that are too old by now
            raise
        finally:
            self._expiry.remove(self._current.path)

    def reopen(self) -> None:
        """Complete the file and go on with the next one; earlier records still go to the former one.

        A failure is logged here, and `write` raises OutputUnavailable until the next file can be opened.
        """
        if not self._current.path:
            return
        if self.rotation.planned is None:
            self.rotation.planned = (self._current.state.end, self._names.path_at(int(time.time())))
        first, path = self.rotation.planned
        try:
            self._current.undo_burst()
            if self._current.pending is None and self._current.state.position >= first:  # else `write` begins it
                self._begin(path, reopen=True)
        except (ConfigError, Damaged, OutputUnavailable) as err:
            log.error("cannot continue with the next file: output=hdf5 cause=%s", err)

    def close(self) -> None:
        """Complete and close the file."""
        current = self._current
        try:
            current.undo_burst()
            if current.pending is not None:
                self.recover()
        except (ConfigError, OutputUnavailable) as err:
            log.error(
                "rows of a failed write stay in the file until the next start: path=%s cause=%s", current.path, err
            )
        if current.pending is None and current.is_open:
            try:
                current.note_clean_end()
            except OutputUnavailable as err:
                log.warning("clean end not noted: output=hdf5 cause=%s", err)
        current.close()
        current.pending = None

    # -- the file --

    def _forget_file(self) -> None:
        """Give up a moved or removed file: the next record begins another one."""
        current = self._current
        log.warning("file was moved or removed, continuing with the next one: path=%s", current.path)
        current.close()
        current.pending, current.is_doubted = None, False
        self.rotation.planned = None
        current.path = self._names.path_at(0) if self._names.is_fixed else ""
        if current.path:
            self._save_new(current.path)

    def _save_new(self, path: str) -> None:
        """Save the path of the next file before its creation, so that each existing file is known."""
        state = self._current.state
        Checkpoint(path, first=state.position, tables=0).save(state, state.position)

    def _begin(self, path: str, reopen: bool = False) -> None:
        """Complete the file and go on with the one at `path`, if that is another one or with `reopen`."""
        current = self._current
        if path != current.path:
            log.info("next file: path=%s former=%s", path, current.path)
            current.close()
            if not os.path.lexists(path):
                self._save_new(path)
            current.path, reopen = path, True
            self._expiry.is_due = True
        self.rotation.begun(path)
        if reopen:
            current.close()
            current.open()

    def _prepare(self, record: JournalRecord) -> None:
        """Bring the file to open, and undo the last burst if it failed."""
        current = self._current
        try:
            current.undo_burst()
            if current.is_doubted:
                current.close()
            if current.file is not None and current.is_open and current.file.was_moved():
                self._forget_file()
            while current.path and not current.is_open:
                self.recover()
            if not current.path:
                self._begin(self._names.path_at(received_s(record)))
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err
        except OSError as err:
            raise OutputUnavailable(f"cannot look at {current.path}: {cause(err)}") from err

    def _rotate(self, record: JournalRecord) -> None:
        try:
            while path := self.rotation.next_path(self._current.path, record):
                self._begin(path)
            if self._current.file is not None and self.rotation.is_full(self._current.file.size_bytes):
                self._begin(self._names.path_at(received_s(record)))
        except (ConfigError, Damaged) as err:
            raise OutputUnavailable(str(err)) from err


def _not_writable(path: str, err: OSError) -> ConfigError:
    why = reason_with_remedy(path, cause(err))
    return ConfigError(
        f"{path}: cannot be opened for writing: {why}; check its owner, rights and disk, or change --hdf5-filepath"
    )
