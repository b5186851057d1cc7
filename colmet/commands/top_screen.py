"""The terminal of `colmet top`: input of keys, output of screens, restored at the end."""

from __future__ import annotations

import contextlib
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

from rich.console import Console
from rich.live import Live
from rich.text import Text

from colmet.commands import top_view as view
from colmet.commands.top_state import Scalar, ScreenState
from colmet.commands.top_view import Line
from colmet.common.daemon.wakeup import Signals, Wakeup, readable
from colmet.common.errors import ColmetError

Ask = Callable[[Mapping[str, Scalar]], dict[str, Any]]

LOOK_S = 1.0  # between two updates of the screen's clock
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


class Question:
    """A request to the daemon in a thread of its own, so keys work while it does not answer."""

    def __init__(self, ask: Ask, request: Mapping[str, Scalar], wakeup: Wakeup) -> None:
        self.request = request
        self.answer: dict[str, Any] | str | None = None  # or the error as text; None until there is one
        self._ask, self._wakeup = ask, wakeup
        threading.Thread(target=self._run, name="question", daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = self._ask(self.request)
        except ColmetError as err:
            self.answer = str(err)
        except Exception as err:  # noqa: BLE001 - shown; the next request may succeed
            self.answer = f"a defect of colmet top: {type(err).__name__}: {err}"
        self._wakeup.wake()


def rendered(lines: list[Line]) -> Text:
    """Convert lines for rich."""
    joined = Text("\n", end="").join([Text.assemble(*line, end="") for line in lines])
    joined.no_wrap, joined.overflow = True, "crop"
    return joined


def show(ask: Ask, request: Mapping[str, Scalar], interval_s: float) -> int:
    """Run the screen until the user leaves; return the exit status."""
    has_blocks = "utf" in (sys.stdout.encoding or "").lower()
    state = ScreenState(request, interval_s, view.BARS if has_blocks else view.PLAIN_BARS)
    console = Console(highlight=False, markup=False, emoji=False)
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
    wakeup = Wakeup()
    question = Question(ask, state.request, wakeup)
    answered, is_shown = 0.0, False  # when, and whether, the question was answered
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals(wanted))
        keyboard = sys.stdin.fileno()
        former = termios.tcgetattr(keyboard)

        def restore() -> None:
            with contextlib.suppress(termios.error):  # the terminal has gone
                termios.tcsetattr(keyboard, termios.TCSANOW, former)

        stack.callback(restore)
        tty.setcbreak(keyboard, termios.TCSANOW)
        live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False))
        while not state.ended and not signals.stop_wanted() and signal.SIGHUP not in signals.pending:
            width, height = console.size
            live.update(rendered([*state.lines(width, height, time.time())]), refresh=True)
            due_s = answered + interval_s - time.monotonic() if is_shown else LOOK_S
            ready = readable([signals.fd, keyboard, wakeup.fd], max(0.0, min(LOOK_S, due_s)))
            signals.drain()
            if keyboard in ready:
                data = b""
                with contextlib.suppress(OSError):  # as above: q
                    data = os.read(keyboard, 1024)
                for key in keys(data) if data else ["q"]:
                    state.press(key)
            if wakeup.fd in ready:
                wakeup.clear()
                answered, is_shown = time.monotonic(), True
                if isinstance(question.answer, str):
                    state.fail(question.answer)
                elif question.answer is not None:
                    state.take(question.request, question.answer, time.time())
            # a new request is sent at once, the same one after the interval; one at a time
            if is_shown and (state.request is not question.request or time.monotonic() >= answered + interval_s):
                question, is_shown = Question(ask, state.request, wakeup), False
            signals.take(signal.SIGWINCH)
            if signals.take(signal.SIGTSTP):
                live.stop()
                restore()
                os.kill(os.getpid(), signal.SIGSTOP)
                tty.setcbreak(keyboard, termios.TCSANOW)
                live.start()
        ended_by = signals.pending & {signal.SIGTERM, signal.SIGHUP}
    return 128 + min(ended_by) if ended_by else 0
