"""Names of an output's files, and rotation to the next file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from colmet.collector.backend import JournalRecord
from colmet.common.errors import ConfigError

SUFFIX = ".hdf5"
ASIDE = ".damaged"  # behind the name of a damaged file; a number may follow
NS = 1_000_000_000
_DATED = re.compile(rf"(.+)\.[0-9]{{10}}{re.escape(SUFFIX)}", re.ASCII)


class FileNames:
    """Names of an output's files.

    Args:
        configured: the only file if it ends in ``.hdf5``; otherwise files are ``<configured>.<epoch seconds>.hdf5``.

    Attributes:
        is_fixed: whether there is only one file.
    """

    def __init__(self, configured: str) -> None:
        self.configured = configured
        self.is_fixed = configured.endswith(SUFFIX)

    def path_at(self, time_s: int) -> str:
        """Return the path of the file beginning at a time, in seconds since the epoch."""
        if self.is_fixed:
            return os.path.abspath(self.configured)
        if not os.path.basename(self.configured):
            raise ConfigError(
                f"--hdf5-filepath {self.configured}: names a directory; add the start of a file name to it"
            )
        return os.path.abspath(f"{self.configured}.{time_s:010d}{SUFFIX}")

    def is_ours(self, path: str) -> bool:
        """Return whether the configured path yields this file, at any time."""
        return path == self.path_at(0) if self.is_fixed else self.begun_s(path) is not None

    def there(self) -> list[tuple[int, str]]:
        """Return the times and paths of existing files named by their time; none if the directory cannot be read."""
        directory = os.path.dirname(os.path.abspath(self.configured))
        try:
            paths = [os.path.join(directory, name) for name in os.listdir(directory)]
        except OSError:
            return []
        return sorted([(begun, path) for path in paths if (begun := self.begun_s(path)) is not None])

    def set_aside(self) -> list[str]:
        """Return the existing damaged files that were set aside; none if the directory cannot be read."""
        directory = os.path.dirname(self.path_at(0))
        try:
            paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if ASIDE in name]
        except OSError:
            return []
        return [path for path in paths if self.is_ours(path.rpartition(ASIDE)[0])]

    def begun_s(self, path: str) -> int | None:
        """Return the time in a file's name, in seconds since the epoch; None for other names."""
        start, end = os.path.abspath(self.configured) + ".", SUFFIX
        digits = path[len(start) : -len(end)]
        if path.startswith(start) and path.endswith(end) and re.fullmatch(r"[0-9]{10}", digits, re.ASCII):
            return int(digits)
        return None


def is_newest(path: str) -> bool | None:
    """Return whether an existing file is the newest of its collector; None for a name without a time."""
    path = os.path.abspath(path)
    dated = _DATED.fullmatch(path)
    if dated is None:
        return None
    there = FileNames(dated[1]).there()
    return not there or there[-1][1] == path  # without a readable directory, it may be


class Rotation:
    """Rotation rules: the first record of each next file.

    Args:
        period_s: begin a file at each multiple of this period since the epoch; 0 for never.
        max_bytes: begin a file when one has reached this size; 0 for never.

    Attributes:
        planned: number of the next file's first record, and the file's path; None if no file is planned.
    """

    def __init__(self, names: FileNames, period_s: int = 0, max_bytes: int = 0) -> None:
        self._names = names
        self.period_s = period_s
        self.max_bytes = max_bytes
        self.planned: tuple[int, str] | None = None

    def next_path(self, path: str, record: JournalRecord) -> str:
        """Return the path of the file begun by this record; "" if the record belongs to the file at `path`."""
        if self.planned is not None and record.number >= self.planned[0]:
            return self.planned[1]
        if self.period_s:
            period = received_s(record) // self.period_s
            if period > (self._names.begun_s(path) or 0) // self.period_s:
                return self._names.path_at(period * self.period_s)
        return ""

    def is_full(self, size_bytes: int) -> bool:
        """Return whether a file of this size is full."""
        return not self._names.is_fixed and 0 < self.max_bytes <= size_bytes

    def count(self, path: str, records: Sequence[JournalRecord]) -> int:
        """Return the number of leading records for the file at `path`; the first one always counts."""
        if self.planned is None and not self.period_s:
            return len(records)
        return next((n for n, record in enumerate(records) if n and self.next_path(path, record)), len(records))

    def begun(self, path: str) -> None:
        """Note the beginning of the file at `path`."""
        if self.planned is not None and path == self.planned[1]:
            self.planned = None


def received_s(record: JournalRecord) -> int:
    """Return the time of receipt, in seconds since the epoch."""
    return record.received_ns // NS
