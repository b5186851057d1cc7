"""The terminal of `colmet top`: input of keys, output of screens, restored at the end."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Mapping
from typing import Any, Callable

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from colmet.commands.top.state import Scalar, ScreenState
from colmet.commands.top.view import Line
from colmet.common.daemon.wakeup import Signals, Wakeup, readable
from colmet.common.errors import ColmetError

Ask = Callable[[Mapping[str, Scalar]], dict[str, Any]]

LOOK_S = 1.0  # between two updates of the screen's clock
LEAVE_S = 0.5  # for an unanswered request at the end
_KEY = re.compile(r"\x1b[\[O]([0-9;]*)([A-Za-z~])|\x1b|[^\x1b]", re.DOTALL)
_NAMES = {
    **{"A": "up", "B": "down", "D": "esc", "C": "enter", "H": "home", "F": "end"},
    **{"1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pageup", "6~": "pagedown"},
    **{"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace", "\x1b": "esc"},
}


def keys(data: bytes) -> list[str]:
    """Decode the keys in a terminal's input: characters, and names such as up; unknown sequences are skipped."""
    found = []
    for match in _KEY.finditer(data.decode(errors="ignore")):
        text = match[1] + "~" if match[2] == "~" else match[2] or match[0]
        key = _NAMES.get(text, text if match[2] is None else "")
        if key and (len(key) > 1 or key.isprintable()):
            found.append(key)
    return found


class Keyboard:
    """A terminal in unbuffered mode without echo; as a context manager, it is restored at the end."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._former: list[Any] = []

    def __enter__(self) -> Keyboard:
        self._former = termios.tcgetattr(self.fd)
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def begin(self) -> None:
        """Switch the terminal to unbuffered input."""
        tty.setcbreak(self.fd, termios.TCSANOW)

    def rest(self) -> None:
        """Restore the terminal's mode."""
        with contextlib.suppress(termios.error):  # it has gone
            termios.tcsetattr(self.fd, termios.TCSANOW, self._former)

    def read(self) -> list[str]:
        """Return the pressed keys; q if the terminal is gone."""
        try:
            data = os.read(self.fd, 1024)
        except OSError:
            data = b""
        return keys(data) if data else ["q"]


class Poller:
    """A thread for periodic requests to the daemon, so keys work while it does not answer.

    Attributes:
        fd: readable when there is an answer.
    """

    def __init__(self, ask: Ask, request: Mapping[str, Scalar], interval_s: float) -> None:
        self._ask = ask
        self._request = request
        self._interval_s = interval_s
        self._outcome: tuple[Mapping[str, Scalar], dict[str, Any] | str] | None = None
        self._changed = threading.Condition()
        self._ended = False
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._thread.start()

    def want(self, request: Mapping[str, Scalar]) -> None:
        """Send this request from now on, the first one at once if it is new."""
        with self._changed:
            if request is not self._request:
                self._request = request
                self._changed.notify()

    def take(self) -> tuple[Mapping[str, Scalar], dict[str, Any] | str] | None:
        """Take the latest answer or error, with its request; None if there is no new one."""
        self._wakeup.clear()
        with self._changed:
            outcome, self._outcome = self._outcome, None
            return outcome

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(LEAVE_S)

    def _run(self) -> None:
        """Ask until the end, in the thread."""
        while not self._is_over(None):
            request = self._request
            answer: dict[str, Any] | str
            try:
                answer = self._ask(request)
            except ColmetError as err:
                answer = str(err)
            except Exception as err:  # noqa: BLE001 - shown; the next request may succeed
                answer = f"a defect of colmet top: {type(err).__name__}: {err}"
            with self._changed:
                self._outcome = (request, answer)
                self._wakeup.wake()
                self._changed.wait_for(functools.partial(self._is_over, request), self._interval_s)

    def _is_over(self, request: Mapping[str, Scalar] | None) -> bool:
        """Return whether to stop waiting: at the end, or for another request than this one."""
        return self._ended or (request is not None and self._request is not request)


def rendered(lines: list[Line]) -> Group:
    """Convert lines for rich."""
    texts = []
    for line in lines:
        text = Text(no_wrap=True, overflow="crop", end="")
        for part in line:
            text.append(part.text, part.style or None)
        texts.append(text)
    joined = Text("\n", end="").join(texts)
    joined.no_wrap, joined.overflow = True, "crop"
    return Group(joined)


def show(ask: Ask, request: Mapping[str, Scalar], interval_s: float) -> int:
    """Run the screen until the user leaves; return the exit status."""
    state = ScreenState(request, interval_s)
    console = Console(highlight=False, markup=False, emoji=False)
    if "utf" not in (sys.stdout.encoding or "").lower():
        state.plain_bars()
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
    poller = Poller(ask, state.request, interval_s)
    with contextlib.ExitStack() as stack:
        stack.callback(poller.close)
        signals = stack.enter_context(Signals(wanted))
        keyboard = stack.enter_context(Keyboard(sys.stdin.fileno()))
        live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False))
        while not state.ended and not signals.stop_wanted() and signal.SIGHUP not in signals.pending:
            width, height = console.size
            live.update(rendered([*state.lines(width, height, time.time())]), refresh=True)
            ready = readable([signals.fd, keyboard.fd, poller.fd], LOOK_S)
            signals.drain()
            if keyboard.fd in ready:
                for key in keyboard.read():
                    state.press(key)
                poller.want(state.request)
            if poller.fd in ready:
                outcome = poller.take()
                if outcome is not None and isinstance(outcome[1], str):
                    state.fail(outcome[1])
                elif outcome is not None and isinstance(outcome[1], dict):
                    state.take(outcome[0], outcome[1], time.time())
            signals.take(signal.SIGWINCH)
            if signals.take(signal.SIGTSTP):
                live.stop()
                keyboard.rest()
                os.kill(os.getpid(), signal.SIGSTOP)
                keyboard.begin()
                live.start()
        ended_by = signals.pending & {signal.SIGTERM, signal.SIGHUP}
    return 128 + min(ended_by) if ended_by else 0
