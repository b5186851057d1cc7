"""Calls that may hang for ever, on a driver, a file system or a network: each in a thread, given up at a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
POLL_S = 0.1  # between two looks at whether the program is to stop


class Call(Generic[T]):
    """A call in a thread of its own, begun now. If it hangs, the thread does, and nothing else.

    Args:
        function: what is called.
        name: of the thread.

    Attributes:
        began: by the monotonic clock.
        ended_ns: its end, since the epoch; 0 before.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.began = time.monotonic()
        self.ended_ns = 0
        self._function: Callable[[], T] | None = function
        self._result: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            assert self._function is not None
            self._result = self._function()
        except BaseException as err:  # noqa: BLE001 - raised again where the result is taken
            self._error = err
        self._function = None
        self.ended_ns = time.time_ns()

    def wait(self, timeout_s: float, stopping: Callable[[], bool] = lambda: False, grace_s: float = 1.0) -> bool:
        """Wait for the end; return whether it has come.

        Args:
            timeout_s: the longest time.
            stopping: whether the program is to stop; is called ten times a second. From then on it waits for `grace_s`.
            grace_s: as `stopping` says.
        """
        end = time.monotonic() + timeout_s
        is_stopping = False
        while self.thread.is_alive() and (left_s := end - time.monotonic()) > 0:
            self.thread.join(min(POLL_S, left_s))
            if not is_stopping and stopping():
                end, is_stopping = min(end, time.monotonic() + grace_s), True
        return bool(self.ended_ns)

    def result(self) -> T:
        """Return what the ended call has returned, or raise its exception."""
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result
