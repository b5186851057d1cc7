"""Calls that may block for ever: a file system without its server, a library waiting for a network."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from colmet.common.errors import ColmetError
from colmet.common.host.command import Call

T = TypeVar("T")
GRACE_S = 1.0  # for an answer in progress when the program ends


class SourceFailed(ColmetError):
    """A source cannot be queried, or answers in an unknown form; the message suggests a remedy."""


class Deadlines:
    """Calls with a timeout, each in its own thread, abandoned after the timeout.

    While such a thread is still blocked, the same call is refused: threads do not pile up.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Call[Any]] = {}

    def call(
        self, name: str, deadline_s: float, function: Callable[[], T], go_on: Callable[[], bool] = lambda: True
    ) -> T:
        """Return the function's result, or raise its exception; SourceFailed where it, or an earlier one, hangs.

        `name` is of the source, with one call at a time. `go_on` is called meanwhile, several times a second; once it
        returns False, the timeout is short.
        """
        before = self._waiting.pop(name, None)
        if before is not None and not before.ended_ns:
            self._waiting[name] = before
            raise SourceFailed(f"{name} was asked before and still does not answer")
        call = Call(function, f"asks {name}")
        if not call.wait(deadline_s, lambda: not go_on(), GRACE_S):
            self._waiting[name] = call
            why = f"did not answer within {deadline_s:g} s" if go_on() else "had not answered when it was time to end"
            raise SourceFailed(f"{name} {why}")
        try:
            return call.result()
        except SystemExit as err:  # of a plug-in
            raise SourceFailed(f"{name} cannot be asked: {err!r:.100}") from err
