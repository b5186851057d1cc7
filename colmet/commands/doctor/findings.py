"""What a check finds, and how one is carried out: within a time, and whatever it comes upon."""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from colmet.common.errors import ColmetError

BOUND_S = 10.0
MAX_WARNINGS = 10

T = TypeVar("T")


class Level(enum.IntEnum):
    """How bad it is; the exit status, too."""

    PASS = 0
    WARN = 1
    FAIL = 2


class Finding(NamedTuple):
    """What was found.

    Attributes:
        level: how bad it is.
        found: what is there.
        remedy: what to do, a command where there is one; "" where nothing is to be done.
    """

    level: Level
    found: str
    remedy: str = ""


def good(found: str) -> Finding:
    """All is well."""
    return Finding(Level.PASS, found)


def warn(found: str, remedy: str) -> Finding:
    """Something is missing, or will be."""
    return Finding(Level.WARN, found, remedy)


def fail(found: str, remedy: str) -> Finding:
    """It cannot work like this."""
    return Finding(Level.FAIL, found, remedy)


def severe(found: str, remedy: str) -> Finding:
    """It cannot work like this, as far as this user can tell: for root it may."""
    return fail(found, remedy) if os.geteuid() == 0 else warn(found, remedy)


class Unchecked(Exception):
    """A check cannot be carried out; the text says why."""


class Late(Exception):
    """Something did not end within its time."""


class _Warnings(logging.Handler):
    """Keeps what threads log, apart for each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.by_thread: dict[int, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kept = self.by_thread.setdefault(record.thread or 0, [])
        if len(kept) < MAX_WARNINGS:
            kept.append(record.getMessage())


_WARNINGS = _Warnings()


@contextmanager
def quiet() -> Iterator[None]:
    """Meanwhile nothing of Colmet's is logged to standard error: warnings are kept for `take_warnings`."""
    logger = logging.getLogger("colmet")
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(_WARNINGS)
    try:
        yield
    finally:
        logger.removeHandler(_WARNINGS)
        logger.propagate = propagated


def take_warnings() -> list[str]:
    """What this thread has logged at WARNING and above since it was last asked, within `quiet`."""
    return _WARNINGS.by_thread.pop(threading.get_ident(), [])


def bounded(function: Callable[[], T], bound_s: float) -> T:
    """What a function gives, in a thread that is left alone where it takes too long.

    Raises:
        Late: it did.
        Exception: what it raises.
    """
    given: list[T] = []
    raised: list[Exception] = []

    def work() -> None:
        try:
            given.append(function())
        except Exception as err:  # noqa: BLE001 - raised again where it was asked for
            raised.append(err)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(bound_s)
    if raised:
        raise raised[0]
    if not given:
        raise Late(f"no answer within {bound_s:g} s")
    return given[0]


def examine(function: Callable[[], Iterable[Finding]], bound_s: float = BOUND_S) -> list[Finding]:
    """What a check finds; where it cannot be carried out, or not to its end, that is what was found last."""
    found: list[Finding] = []

    def look() -> bool:
        take_warnings()  # of a thread of the same number, that has ended
        found.extend(function())  # one by one
        found.extend([warn(text, "") for text in take_warnings()])
        return True

    try:
        bounded(look, bound_s)
        return found
    except Unchecked as err:
        problem = warn(f"could not be checked: {err}", "")
    except ModuleNotFoundError as err:
        problem = warn(f"could not be checked: the Python module {err.name} is missing", "see under libraries")
    except ImportError as err:
        problem = warn(f"could not be checked: {err}", "see under libraries")
    except (ColmetError, OSError, Late) as err:
        what = "the rest could not be checked" if found else "could not be checked"
        problem = warn(f"{what}: {err}", "")
    except Exception as err:  # noqa: BLE001 - the other checks go on
        problem = warn(f"could not be checked, a defect of colmet doctor: {type(err).__name__}: {err}", "report it")
    return [*found, problem]
