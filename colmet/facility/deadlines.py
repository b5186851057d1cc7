"""Calls that may never come back: a file system whose server is away, a library that waits for a network."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, TypeVar

from colmet.common.errors import ColmetError

T = TypeVar("T")
LOOK_S = 0.2  # between two looks whether to go on
GRACE_S = 1.0  # for what is about to answer when it is time to end


class SourceFailed(ColmetError):
    """A source cannot be asked, or does not answer in a form that is known; the message says what to do."""


class Deadlines:
    """Calls, each in a thread of its own, that is left alone when its time is over.

    While such a thread still waits, the same call is not made again: threads do not pile up.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, threading.Thread] = {}

    def call(
        self, name: str, deadline_s: float, function: Callable[[], T], go_on: Callable[[], bool] = lambda: True
    ) -> T:
        """What the function returns; what it raises is raised here.

        Args:
            name: of what is asked, for the error; one call of a name at a time.
            deadline_s: seconds.
            function: is called in another thread.
            go_on: called meanwhile, several times a second; where it returns False, the deadline is near.

        Raises:
            SourceFailed: it did not come back in time, now or when it was called before.
        """
        before = self._waiting.pop(name, None)
        if before is not None and before.is_alive():
            self._waiting[name] = before
            raise SourceFailed(f"{name} was asked before and still does not answer")
        outcome: list[tuple[bool, Any]] = []

        def answer() -> None:
            try:
                outcome.append((True, function()))
            except BaseException as err:  # noqa: BLE001 - raised where it was called for
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
