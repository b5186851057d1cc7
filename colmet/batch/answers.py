"""Output of batch systems' commands: fetched within bounds, and parsed as untrusted input."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar
from xml.etree.ElementTree import Element

from colmet.batch.model import BatchError
from colmet.common.errors import CommandFailed
from colmet.common.host.command import Command

DEADLINE_S = 60.0  # for one command; a busy controller of a big cluster needs some seconds
MAX_ANSWER = 32 << 20  # bytes of a command's output; a job is 0.6 to 6 kB in JSON
MAX_TEXT = 255  # characters of a name: of a user, a queue, a job
FRESH_S = 5.0  # seconds for which an answer is reused
_SHOWN = 200  # characters of an answer in an error
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MAX_DIGITS = 18  # of a number; more than any real one has, and within 64 bits

log = logging.getLogger(__name__)

T = TypeVar("T")
Part = TypeVar("Part")
_running: dict[Command, threading.Thread] = {}
_unread: Counter[str] = Counter()  # jobs in an unknown form, by batch system
_given_up: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads whose answers are no longer needed


class AskError(BatchError):
    """A command of a batch system did not answer.

    Attributes:
        why: as that of `CommandFailed`: "absent", "status", "late" or "".
    """

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why


class FormError(ValueError):
    """Part of an answer, such as a job, is in an unknown form; the text names the faulty field."""


def ask(
    argv: Sequence[str],
    system: str,
    deadline_s: float = DEADLINE_S,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output, with messages in English.

    Args:
        argv: program and arguments.
        system: name of its batch system, for messages.
        deadline_s: timeout in seconds.
        env: added to the environment.

    Raises:
        AskError: the command is missing, fails, reaches its timeout or prints too much; the text suggests a remedy.
    """
    try:
        return run(Command(argv, deadline_s, env=env, max_answer=MAX_ANSWER)).decode("utf-8", "replace")
    except CommandFailed as err:
        advice = f"run it by hand to see how {system} answers"
        if err.why == "absent":
            advice = f"run this where the commands of {system} are installed and found in PATH, or do not ask for it"
        raise AskError(f"{err}; {advice}", err.why) from err


def run(command: Command) -> bytes:
    """Run a command and return its output, unless `cancel` ends it; errors as for `Command.run_bytes`."""
    _running[command] = thread = threading.current_thread()
    try:
        if thread in _given_up:
            command.cancel()
        return command.run_bytes()
    finally:
        _running.pop(command, None)


def cancel(of: threading.Thread | None = None) -> None:
    """Kill the running commands of a thread, or all; from any thread. The threads waiting for them start no other."""
    if of is not None:
        _given_up.add(of)
    for command, thread in list(_running.items()):
        if of is None or thread is of:
            _given_up.add(thread)
            command.cancel()


def unknown_form(command: str, text: str) -> BatchError:
    """Return the error for a whole answer in an unknown form; `command` as an administrator types it."""
    return BatchError(
        f"{command}: prints what this version of Colmet does not know: {_excerpt(text)!r}; "
        "run it by hand, and report it with the version of the batch system if it looks right"
    )


def _excerpt(text: str) -> str:
    words = " ".join(text[:1000].split())
    return words if len(words) <= _SHOWN else words[:_SHOWN] + "..."


def json_values(text: str, command: str) -> list[object]:
    """Return the JSON values of an answer: none, one, or several after one another; BatchError if not JSON."""
    values: list[object] = []
    at = 0
    try:
        while True:
            while at < len(text) and text[at].isspace():
                at += 1
            if at == len(text):
                return values
            value, at = _DECODER.raw_decode(text, at)
            values.append(value)
    except (ValueError, RecursionError) as err:
        fault = err.pos if isinstance(err, json.JSONDecodeError) else 0
        raise unknown_form(command, text[max(0, fault - _SHOWN // 2) :]) from err


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_DIGITS else None


def _nothing(_: str) -> None:
    return None


# strict=False: some programs print control characters in texts as they are
_DECODER = json.JSONDecoder(strict=False, parse_int=_integer, parse_constant=_nothing)


def whole(value: object) -> int | None:
    """Return a number read from JSON if it is whole and not negative; None otherwise."""
    if isinstance(value, float) and value.is_integer() and value < 10**_MAX_DIGITS:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def name(value: object) -> str | None:
    """Return a name read from JSON or from a word; None if it cannot be one."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable() else None


def must(value: T | None, what: str) -> T:
    """Return the value; raise FormError if it is None."""
    if value is None:
        raise FormError(what)
    return value


def parse_each(parts: Iterable[Part], parse: Callable[[Part], T], system: str, command: str) -> tuple[list[T], int]:
    """Return the parsed parts of an answer, and the number of those skipped because of an unknown form.

    Args:
        parts: such as jobs.
        parse: returns a part's value, or raises FormError.
        system: name of the batch system, for the log.
        command: as an administrator types it.

    Raises:
        BatchError: no part is in a known form; the text shows the first one, and names its faulty field.
    """
    found: list[T] = []
    first: BatchError | None = None
    left_out = 0
    for part in parts:
        try:
            found.append(parse(part))
        except FormError as err:
            first = first or unknown_form(command, f"{err} of {_text(part)}")
            left_out += 1
    if first is not None and not found:
        raise first
    if first is not None:
        before, _unread[system] = _unread[system], _unread[system] + left_out
        if len(str(before)) < len(str(_unread[system])) or not before:  # at the first, the tenth, ...
            log.warning("some jobs are skipped: system=%s jobs=%d: %s", system, _unread[system], first)
    return found, left_out


def _text(part: object) -> str:
    """Return a job as text: the fields of a line, or JSON."""
    if isinstance(part, (list, tuple)) and all(isinstance(word, str) for word in part):
        return "|".join(part)
    if isinstance(part, Element):
        return " ".join(part.itertext())
    return part if isinstance(part, str) else repr(part)


def task_range(text: str) -> range | None:
    """Return the tasks of a part of an array's list, such as "7", "4-5" or "10-20:2"; None if invalid."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    return range(first, last + 1, step) if last >= first and step else None


def total(values: Sequence[int | None]) -> int | None:
    """Return the sum; None if one value is unknown, as a partial sum would look like the whole."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class Cached(Generic[T]):
    """A value cached for `FRESH_S`: queues and jobs then come from one answer."""

    def __init__(self, get: Callable[[], T]) -> None:
        self._get = get
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Return the cached value, or fetch it now."""
        if self._kept is None or time.monotonic() - self._kept[0] > FRESH_S:
            self._kept = None
            value = self._get()
            self._kept = time.monotonic(), value
        return self._kept[1]
