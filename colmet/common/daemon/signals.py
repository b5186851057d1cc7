"""Signals as data: a readable descriptor, and the set of received signals."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

from colmet.common.daemon.wakeup import Wakeup


class Signals:
    """Handlers that note signals: a descriptor that becomes readable, and the set of received signals.

    Use in the main thread, as a context manager; the former handlers are restored at the end.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self.pending: set[signal.Signals] = set()
        self._wanted = tuple(wanted)
        self._former: dict[signal.Signals, Any] = {}
        self._former_fd = -1
        self.fd = -1

    def __enter__(self) -> Signals:
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd
        self._former_fd = signal.set_wakeup_fd(self._wakeup.write_fd, warn_on_full_buffer=False)
        for number in self._wanted:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        self._wakeup.close()

    def _note(self, number: int, _frame: object) -> None:
        self.pending.add(signal.Signals(number))

    def stop_wanted(self) -> bool:
        """Return whether SIGTERM or SIGINT came."""
        return bool(self.pending & {signal.SIGTERM, signal.SIGINT})

    def take(self, number: signal.Signals) -> bool:
        """Return whether this signal came since the last call."""
        came = number in self.pending
        self.pending.discard(number)
        return came

    def drain(self) -> None:
        """Make the descriptor unreadable again. The next wait sees every later signal."""
        self._wakeup.clear()
