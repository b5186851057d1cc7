"""The files of an output: their options, their names, rotation to the next one, and the removal of old ones."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.check import last_row_s
from colmet.collector.backends.hdf5.checkpoint import remove_tails
from colmet.collector.backends.hdf5.h5file import lock
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.library import tables
from colmet.common.config import cli
from colmet.common.config.cli import Options, did_you_mean
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.host.files import sync_directory

SUFFIX = ".hdf5"
ASIDE = ".damaged"  # behind the name of a damaged file; a number may follow
NS = 1_000_000_000
_DATED = re.compile(rf"(.+)\.[0-9]{{10}}{re.escape(SUFFIX)}", re.ASCII)
log = logging.getLogger(__name__)
REMOVAL_S = 2.0  # of a turn: rows wait meanwhile
COMPLIBS = ("zlib", "lzo", "bzip2", "blosc", "blosc2")
_ROTATE = re.compile(r"([1-9][0-9]{0,8})(m|h|d|M|G|T)", re.ASCII)
_PERIODS_S = {"m": 60, "h": 3600, "d": 86400}
_SIZES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
        keep_s: the limit; 0 keeps all files.

    Attributes:
        counts: removed files, their bytes, and old files that could not be removed or are not the collector's.
        is_due: whether files may have become too old.
    """

    def __init__(self, names: FileNames, keep_s: int) -> None:
        self._names = names
        self._keep_s = keep_s
        self._kept: dict[str, float] = {}  # old files that are not removed, and until when; logged
        self._in_use: set[str] = set()  # those that cannot be looked at now, up to the next file of the output
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
            if file.path in self._in_use or time.time() <= self._kept.get(file.path, 0.0):
                continue
            try:
                self._remove(file)
            except (ColmetError, OSError) as err:
                if not isinstance(err, Damaged):
                    self._in_use.add(file.path)
                elif self._kept.get(file.path, 0.0) < time.time():
                    self._kept[file.path] = math.inf
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
                self._kept[file.path] = float(last_s + self._keep_s)
                raise Damaged(f"its last row is of {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(last_s))}")
            os.unlink(file.path)
        finally:
            os.close(descriptor)
        remove_tails(file.path)
        sync_directory(os.path.dirname(file.path))
        self.counts["files_removed"] += 1
        self.counts["bytes_removed"] += file.size_bytes
        log.info("old file removed: path=%s bytes=%d last_row=%d", file.path, file.size_bytes, last_s)


def rotation(text: str) -> tuple[str, int]:
    """Parse the maximum period or size of a file, as ``("s", seconds)`` or ``("bytes", bytes)``: an option type."""
    found = _ROTATE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a period (30m, 6h, 1d) nor a size (500M, 10G, 1T; M is 2^20 bytes)"
        )
    count, unit = int(found.group(1)), found.group(2)
    return ("s", count * _PERIODS_S[unit]) if unit in _PERIODS_S else ("bytes", count * _SIZES[unit])


def complib(text: str) -> str:
    """Check and return the name of a compression library: an option type."""
    if text in COMPLIBS or text in tables.filters.all_complibs:
        return text
    codecs = [name for name in tables.filters.all_complibs if ":" in name]
    known = [*COMPLIBS, *codecs]
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}{did_you_mean(text, known)}")


def add_options(parser: Options) -> None:
    """Declare the options."""
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
        help="start a new file every 30m, 6h or 1d, or at 500M or 10G; in UTC; repeatable (default: at start and "
        "SIGHUP)",
    )
    parser.add_argument(
        "--hdf5-keep",
        metavar="PERIOD",
        type=cli.period,
        default=0,
        help=cli.Rare(
            "remove files whose last row is older than this: 90d, 52w, 2y; after each start and rotation, never the "
            "file being written (default: keep all)"
        ),
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
    parser.require("--hdf5-filepath", "--hdf5-")


def check_options(options: argparse.Namespace) -> Mapping[str, int]:
    """Return period ("s") and size ("bytes") of --hdf5-rotate; ConfigError for options that cannot work here."""
    path = options.hdf5_filepath
    if not path:
        raise ConfigError("--hdf5-filepath is empty; give a path, e.g. /var/lib/colmet/colmet")
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
    if options.hdf5_keep and path.endswith(SUFFIX):
        raise ConfigError(
            f"--hdf5-keep: {path} ends in {SUFFIX}, so it is the one file, which cannot be removed: give "
            f"--hdf5-filepath {path[: -len(SUFFIX)]} and --hdf5-rotate 1d; old files are then removed"
        )
    return rotate
