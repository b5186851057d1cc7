"""Log lines on standard error: with time and level, or in the form of systemd's journal, which adds the time itself.

A message is one line, whatever its content: names come from the network, from files and from users.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Any

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
JOURNAL_FORMAT = "%(levelname)s %(name)s: %(message)s"
STDERR = 2  # descriptor
# sd-daemon(3); a line without a prefix is information
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


def is_journal() -> bool:
    """Return whether standard error writes to the journal, by JOURNAL_STREAM (systemd.exec(5))."""
    try:
        status = os.fstat(STDERR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def priority(level: str) -> str:
    """Return the prefix of a line of this level on standard error: ``<4>`` for the journal, else nothing."""
    return f"<{_PRIORITIES.get(level, 6)}>" if is_journal() else ""


def visible(text: str, kept: str = "") -> str:
    """Return a text with escapes for unprintable characters but `kept`: line ends, controls, directions of writing."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() or one in kept else ascii(one)[1:-1] for one in text])


class LineFormatter(logging.Formatter):
    """Formats records: a line for the message, then the lines of a traceback, all of them printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        """Return the line of a record."""
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - of logging
        """Return the lines of a traceback; the text of each exception is one."""
        parts = [part.rstrip("\n") for part in traceback.format_exception(*ei)]
        return "\n".join([visible(part, "\n" if part[:1] in (" ", "\n") else "") for part in parts])


class JournalFormatter(LineFormatter):
    """Formats records for the journal: each line with its priority, none with a time."""

    def __init__(self) -> None:
        super().__init__(JOURNAL_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record, a traceback included."""
        before = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return "\n".join([before + line for line in super().format(record).split("\n")])


def set_up(level: int) -> None:
    """Log to standard error from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JournalFormatter() if is_journal() else LineFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


class OnceLog:
    """Writes each text to a log once, whatever its arguments."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[str] = set()

    def warning(self, text: str, *arguments: object, level: int = logging.WARNING) -> None:
        """Log a text, unless it has been logged."""
        if text not in self._logged:
            self._logged.add(text)
            self._log.log(level, text, *arguments)

    def info(self, text: str, *arguments: object) -> None:
        """Log a text as information, unless it has been logged."""
        self.warning(text, *arguments, level=logging.INFO)


def powers_of_ten(count: int, before: int | None = None) -> bool:
    """Return whether to log a repeated event: the 1st, 10th, 100th ... time.

    Args:
        count: occurrences so far.
        before: the count before, if it grows by more than one at once: whether it has passed such a number since.
    """
    before = count - 1 if before is None else before
    return before < count and (not before or len(str(before)) < len(str(count)))
