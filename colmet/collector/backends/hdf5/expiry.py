"""Removal of an output's old files (--hdf5-keep)."""

from __future__ import annotations

import logging
import os
import stat
import time
from typing import NamedTuple

from colmet.collector.backends.hdf5.chunk_backup import remove_tails
from colmet.collector.backends.hdf5.file_lock import lock
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.isolated import last_row_s
from colmet.collector.backends.hdf5.rotation import FileNames
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.host.files import sync_directory

log = logging.getLogger(__name__)

REMOVAL_S = 2.0  # of a turn: rows wait meanwhile


class OldFile(NamedTuple):
    """A file whose writing ended before the limit."""

    path: str
    size_bytes: int


class Expiry:
    """Removal of files whose last row is older than a limit, oldest first.

    Only files before the current one are removed: no row is written to them any more, and the journal rebuilds the
    current one alone. A row is at most as new as its arrival. So first the end of the writing decides, the start of the
    next file or the last modification; then the content is read.

    Args:
        names: of the output's files.
        keep_s: the limit; 0 keeps all files.

    Attributes:
        counts: removed files, their bytes, and old files that could not be removed or are not the collector's.
        is_due: whether files may have become too old.
    """

    def __init__(self, names: FileNames, keep_s: int) -> None:
        self._names = names
        self._keep_s = keep_s
        self._kept: set[str] = set()  # old files that are not removed; logged
        self._in_use: set[str] = set()  # those that another process writes to, up to the next file of the output
        self.counts = dict.fromkeys(("files_removed", "bytes_removed", "files_not_removed"), 0)
        self.is_due = True

    def old_files(self, current: str) -> list[OldFile]:
        """Return the files before the current one whose writing ended before the limit, oldest first."""
        end = self._names.begun_s(current)
        if not self._keep_s or end is None:
            return []
        before = [(begun, path) for begun, path in self._names.there() if begun < end]
        found = []
        for (_, path), (next_begun, _) in zip(before, [*before[1:], (end, current)]):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and min(next_begun, status.st_mtime) < time.time() - self._keep_s:
                found.append(OldFile(path, status.st_size))
        return found

    def remove(self, current: str) -> None:
        """Remove old files for at most about `REMOVAL_S`, at least one; the call after the next write continues."""
        if not self.is_due:
            return
        began = time.monotonic()
        for file in self.old_files(current):
            if file.path in self._kept | self._in_use:
                continue
            try:
                self._remove(file)
            except (ColmetError, OSError) as err:
                (self._in_use if isinstance(err, ConfigError) else self._kept).add(file.path)
                self.counts["files_not_removed"] += 1
                log.warning("old file not removed: path=%s cause=%s", file.path, err)
            if time.monotonic() >= began + REMOVAL_S:
                return
        self._in_use.clear()
        self.is_due = False

    def _remove(self, file: OldFile) -> None:
        descriptor = lock(file.path)  # another collector may write to it
        try:
            last_s = last_row_s(file.path)
            if last_s >= time.time() - self._keep_s:
                raise Damaged(f"its last row is of {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(last_s))}")
            os.unlink(file.path)
        finally:
            os.close(descriptor)
        remove_tails(file.path)
        sync_directory(os.path.dirname(file.path))
        self.counts["files_removed"] += 1
        self.counts["bytes_removed"] += file.size_bytes
        log.info("old file removed: path=%s bytes=%d last_row=%d", file.path, file.size_bytes, last_s)
