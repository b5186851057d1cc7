"""Bounded file of rows refused for good by the database, with the reason, for the administrator."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.host.files import write_all

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20


class DeadLetters:
    """Lines in a file, moved aside to `PATH.1` once when full; once both are full, lines are only counted.

    Args:
        path: of the file; empty to count only. The first line creates it, readable by its owner only.

    Attributes:
        not_kept: dropped lines: without a file, for lack of space or after a write error.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.not_kept = 0
        self._max_bytes = max_bytes
        self._aside = f"{path}.1"

    def add(self, lines: Sequence[bytes]) -> None:
        """Append lines (without newlines) durably; count and log dropped ones."""
        try:
            kept, why = self._add(lines) if self.path else (0, "there is no file for them")
        except OSError as err:
            kept, why = 0, str(err.strerror)
        for _ in lines[kept:]:
            self.not_kept += 1
            if powers_of_ten(self.not_kept):
                log.error("refused rows not kept path=%s rows=%d: %s", self.path, self.not_kept, why)

    def _add(self, lines: Sequence[bytes]) -> tuple[int, str]:
        """Append lines; return the number of kept lines, and the reason if not all."""
        done = 0
        while done < len(lines):
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                size = os.fstat(descriptor).st_size
                fitting = 0
                for line in lines[done:]:
                    size += len(line) + 1
                    if size > self._max_bytes:
                        break
                    fitting += 1
                write_all(descriptor, b"".join([line + b"\n" for line in lines[done : done + fitting]]))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            done += fitting
            if done < len(lines):
                if len(lines[done]) >= self._max_bytes or os.path.lexists(self._aside):
                    return done, f"full; look at it and at {self._aside}, and remove both"
                os.rename(self.path, self._aside)
        return done, ""
