"""A line of progress on a terminal, for commands that read for more than some seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from colmet.stored.series import History

AFTER_S = 2.0  # after the start of the command
EVERY_S = 0.2
WIDTH = 30  # of the bar, characters


@contextmanager
def shown_progress(history: History, command: str) -> Iterator[None]:
    """Show the progress of a history on stderr, if that is a terminal; the line is removed at the end."""
    if not sys.stderr.isatty():
        yield
        return
    line = _Line(command)
    history.progress = line.show
    try:
        yield
    finally:
        history.progress = History.progress
        line.remove()


class _Line:
    def __init__(self, command: str) -> None:
        self._command = command
        self._next = time.monotonic() + AFTER_S
        self._is_there = False

    def show(self, what: str, share: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self._is_there = now + EVERY_S, True
        done = round(min(1.0, max(0.0, share)) * WIDTH)
        bar = "#" * done + "." * (WIDTH - done)
        line = f"{self._command}: {bar} {share:4.0%} {what}"
        print(f"\r{line[: _columns() - 1]}\033[K", end="", file=sys.stderr, flush=True)

    def remove(self) -> None:
        if self._is_there:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    """Return the width of the terminal: a longer line would be repeated instead of replaced."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
