"""Calls that may block for ever: a file system without its server, a library waiting for a network."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, TypeVar

from colmet.common.errors import ColmetError

T = TypeVar("T")
LOOK_S = 0.2  # between two calls of go_on
GRACE_S = 1.0  # for an answer in progress when the program ends


class SourceFailed(ColmetError):
    """A source cannot be queried, or answers in an unknown form; the message suggests a remedy."""


class Deadlines:
    """Calls with a timeout, each in its own thread, abandoned after the timeout.

    While such a thread is still blocked, the same call is refused: threads do not pile up.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, threading.Thread] = {}

    def call(
        self, name: str, deadline_s: float, function: Callable[[], T], go_on: Callable[[], bool] = lambda: True
    ) -> T:
        """Return the function's result, or raise its exception.

        Args:
            name: of the source, for the error; one call of a name at a time.
            deadline_s: timeout in seconds.
            function: is called in another thread.
            go_on: called meanwhile, several times a second; once it returns False, the timeout is short.

        Raises:
            SourceFailed: timeout, of this call or of an earlier one that is still blocked.
        """
        before = self._waiting.pop(name, None)
        if before is not None and before.is_alive():
            self._waiting[name] = before
            raise SourceFailed(f"{name} was asked before and still does not answer")
        outcome: list[tuple[bool, Any]] = []

        def answer() -> None:
            try:
                outcome.append((True, function()))
            except BaseException as err:  # noqa: BLE001 - raised in the calling thread
                outcome.append((False, err))

        thread = threading.Thread(target=answer, name=f"asks {name}", daemon=True)
        thread.start()
        until, stopping = time.monotonic() + deadline_s, False
        while thread.is_alive() and (left_s := until - time.monotonic()) > 0:
            thread.join(min(LOOK_S, left_s))
            if not stopping and not go_on():
                until, stopping = min(until, time.monotonic() + GRACE_S), True
        if not outcome:
            self._waiting[name] = thread
            why = "had not answered when it was time to end" if stopping else f"did not answer within {deadline_s:g} s"
            raise SourceFailed(f"{name} {why}")
        came, value = outcome[0]
        if not came:
            if not isinstance(value, Exception):  # SystemExit of a plug-in is not ours
                raise SourceFailed(f"{name} cannot be asked: {value!r:.100}")
            raise value
        answered: T = value
        return answered
