"""The HDF5 files of a collector, and reading them while they are written."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from typing import Callable, NamedTuple, TypeVar

from colmet.common.errors import ConfigError
from colmet.stored.reading_process import Reader, Unreadable

SUFFIX = ".hdf5"
# A file has the rows received while it was written. Late rows come from nodes that could not send, which keep batches
# this long. Early rows come from nodes with a fast clock.
LATE_S = 7 * 86400
EARLY_S = 300
# A file being written can be read in the middle of a burst: it is read again.
LIVE_S = 300.0
BURST_S = 1.0  # missing rows may be there after this time
TRIES = 10
WAIT_S = 0.2

T = TypeVar("T")


class HeldFile(NamedTuple):
    """A file, and the interval of its writing, in seconds since 1970."""

    path: str
    begins: float = float("-inf")
    ends: float = float("inf")

    def overlaps(self, since: float | None, until: float | None) -> bool:
        """Return whether rows of the interval may be in it."""
        return (since is None or self.ends >= since - EARLY_S) and (until is None or self.begins <= until + LATE_S)


def files_of(path: str) -> list[HeldFile]:
    """Return the files of a collector's ``--hdf5-filepath``, by time; empty without any.

    The path is a file, or the part before ``.<10 digits>.hdf5``.

    Raises:
        ConfigError: the directory cannot be read.
    """
    single = [HeldFile(path)] if os.path.isfile(path) else []
    directory, name = os.path.split(path)
    pattern = re.compile(rf"{re.escape(name)}\.(\d{{10}}){re.escape(SUFFIX)}", re.ASCII)
    try:
        found = [(int(match[1]), match[0]) for match in map(pattern.fullmatch, os.listdir(directory or ".")) if match]
    except (FileNotFoundError, NotADirectoryError):
        return single
    except (OSError, ValueError) as err:
        if single:
            return single
        raise ConfigError(f"{printable(path)}: {getattr(err, 'strerror', None) or err}") from err
    found.sort()
    ends = [float(begins) for begins, _ in found[1:]] + [float("inf")]
    dated = [HeldFile(os.path.join(directory, name), begins, end) for (begins, name), end in zip(found, ends)]
    return single + dated


def printable(path: str) -> str:
    """Return a path that can neither control a terminal nor add a line of its own."""
    return path if path.isprintable() else ascii(path)


def ask(
    reader: Reader,
    path: str,
    read: partial[T],
    torn: Callable[[T], bool],
    progress: Callable[[float], None] = lambda _: None,
) -> T:
    """Return the result of `read` for a file; for one being written, with retries.

    Args:
        reader: the reading process.
        path: of the file.
        read: one of the reader's functions with its keyword arguments.
        torn: whether a result is from the middle of a burst, with rows ahead of their values.
        progress: called with the share of a table that is read.

    Raises:
        ConfigError: it cannot be read.
    """
    kept_bytes = reader.spool_bytes
    for left in reversed(range(TRIES)):
        reader.cut_spool(kept_bytes)
        try:
            found = reader.ask(path, read, progress)
            if not left or not torn(found) or not is_live(path):
                return found
        except Unreadable as err:
            if not left or not err.may_change or not is_live(path):
                reader.cut_spool(kept_bytes)
                raise ConfigError(f"{printable(path)}: cannot be read: {err}") from err
        time.sleep(WAIT_S)
    raise AssertionError("unreachable")


def is_live(path: str, within_s: float = LIVE_S) -> bool:
    """Return whether a file was written to within the last seconds."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < within_s
    except OSError:
        return False
