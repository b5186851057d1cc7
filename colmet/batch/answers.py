"""Output of batch systems' commands: fetched within bounds, and its fields read as untrusted input."""

from __future__ import annotations

import json
import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from colmet.common.errors import ColmetError, CommandFailed
from colmet.common.host.command import Command

DEADLINE_S = 60.0  # for one command; a busy controller of a big cluster needs some seconds
MAX_ANSWER = 32 << 20  # bytes of a command's output; a job is 0.6 to 6 kB in JSON
MAX_TEXT = 255  # characters of a name: of a user, a queue, a job
LONG_TEXT = 4096  # characters of a text that is a list, such as dependencies
MAX_HOSTS = 20_000  # of one job
MAX_SIGNAL = 64
FRESH_S = 5.0  # seconds for which an answer is reused
_SHOWN = 200  # characters of an answer in an error
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MAX_DIGITS = 18  # of a number; more than any real one has, and within 64 bits
_LARGEST = 1 << 53
_HOST_LIST = re.compile(r"(?:[^\[\]]|\[[^\[\]]*\])*")
_HOSTS = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # between two commas outside of brackets
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_VALUE = re.compile(r"\S")

T = TypeVar("T")
_running: dict[Command, threading.Thread] = {}
_given_up: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads whose answers are no longer needed


class BatchError(ColmetError):
    """A batch system does not answer, or in an unknown form; the message suggests a remedy."""


class AskError(BatchError):
    """A command of a batch system did not answer; `why` is as that of `CommandFailed`."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why


class FormError(ValueError):
    """Part of an answer, such as a job, is in an unknown form; the text names the faulty field."""


def ask(argv: Sequence[str], system: str, deadline_s: float = DEADLINE_S, env: Mapping[str, str] | None = None) -> str:
    """Run a command of a batch system and return its output, with messages in English; `env` is added to its own.

    AskError where it is missing, fails, reaches its timeout or prints too much; the text suggests a remedy.
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


def unknown_form(command: str, text: str) -> BatchError:
    """Return the error for a whole answer in an unknown form; `command` as an administrator types it."""
    words = " ".join(text[:1000].split())
    excerpt = words if len(words) <= _SHOWN else words[:_SHOWN] + "..."
    return BatchError(
        f"{command}: prints what this version of Colmet does not know: {excerpt!r}; "
        "run it by hand, and report it with the version of the batch system if it looks right"
    )


def json_values(text: str, command: str) -> list[object]:
    """Return the JSON values of an answer: none, one, or several after one another; BatchError if not JSON."""
    values: list[object] = []
    end = 0
    try:
        while begin := _VALUE.search(text, end):
            value, end = _DECODER.raw_decode(text, begin.start())
            values.append(value)
        return values
    except (ValueError, RecursionError) as err:
        fault = err.pos if isinstance(err, json.JSONDecodeError) else 0
        raise unknown_form(command, text[max(0, fault - _SHOWN // 2) :]) from err


# strict=False: some programs print control characters in texts as they are
_DECODER = json.JSONDecoder(
    strict=False,
    parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else None,
    parse_constant=lambda _: None,
)


# -- fields, read from untrusted input --


def must(value: T | None, what: str) -> T:
    """Return the value; raise FormError if it is None."""
    if value is None:
        raise FormError(what)
    return value


def name(value: object) -> str | None:
    """Return a name read from JSON or from a word; None if it cannot be one."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable() else None


def text(value: object, most: int = MAX_TEXT) -> str | None:
    """Return a text with unprintable characters replaced, cut to `most`; None for an empty one or no text."""
    if not isinstance(value, str) or not value.strip():
        return None
    return "".join([letter if letter.isprintable() else "\ufffd" for letter in value.strip()[:most]])


def count(value: object) -> int | None:
    """Return a whole number from digits or a number, 0 or more; None for all else."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 16 else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None


def whole_below(value: float | None) -> int | None:
    """Return a computed number as a whole one; None if it is too large for the archive, or unknown."""
    return None if value is None or not 0 <= value <= _LARGEST else int(value)


def total(values: Sequence[int | None]) -> int | None:
    """Return the sum; None if one value is unknown, as a partial sum would look like the whole."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def moment_or_none(value: object, field: str, absent: Collection[object] = ()) -> int | None:
    """Return seconds since 1970; None only for 0, nothing, or a word of `absent`; FormError for another form."""
    if value is None or value in ("", "0", 0) or value in absent:
        return None
    seconds = count(value)
    return must(seconds if seconds and seconds < 1 << 40 else None, field)


def exit_of(status: int | None) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of a wait status, as of wait(2); None for the one that it has not."""
    if status is None or not 0 <= status <= 0xFFFF:
        return None, None
    signal = status & 0x7F
    if signal:
        return None, signal if signal <= MAX_SIGNAL else None
    return status >> 8, None


def task_range(text: str) -> range | None:
    """Return the tasks of a part of an array's list, such as "7", "4-5" or "10-20:2"; None if invalid."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return range(first, last + 1, step) if last >= first and step else None


def hosts_text(hosts: Iterable[object]) -> str | None:
    """Return the text of the column `batch_hosts`, each host once and in order; None without hosts."""
    names = [host for host in dict.fromkeys(hosts) if name(host) is not None and "," not in str(host)]
    return ",".join(sorted(map(str, names[:MAX_HOSTS]))) or None


def expand_hosts(expression: str) -> list[str]:
    """Return the hosts of an expression such as `n[01-03,7],login`, `r[1-2]n[1-4]`; FormError for others."""
    if not _HOST_LIST.fullmatch(expression):
        raise FormError("hosts")
    hosts: list[str] = []
    for part in _HOSTS.findall(expression):
        hosts += _expand_brackets(part)
        if len(hosts) > MAX_HOSTS:
            raise FormError("too many hosts")
    return hosts


def _expand_brackets(part: str) -> list[str]:
    hosts = [""]
    for place, piece in enumerate(_BRACKETS.split(part)):  # texts, and between two of them what was in brackets
        choices = [number for word in piece.split(",") for number in _expand_range(word)] if place % 2 else [piece]
        if len(hosts) * len(choices) > MAX_HOSTS or len(hosts[0]) > MAX_TEXT:
            raise FormError("hosts")
        hosts = [before + choice for before in hosts for choice in choices]
    return hosts


def _expand_range(word: str) -> list[str]:
    first, dash, last = word.partition("-")
    if not all(number.isascii() and number.isdigit() and len(number) <= 9 for number in (first, last if dash else "0")):
        raise FormError("hosts")
    end = int(last) if dash else int(first)
    if not 0 <= end - int(first) < MAX_HOSTS:
        raise FormError("hosts")
    return [str(number).zfill(len(first)) for number in range(int(first), end + 1)]
