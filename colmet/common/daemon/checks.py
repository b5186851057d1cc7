"""Checks of a daemon and of its machine: findings, checks with a timeout, and printing of findings.

`colmet doctor`, `colmet status` and `colmet-node --once` are views of these findings.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, Union

from colmet import __version__
from colmet.common.errors import ColmetError
from colmet.common.host import capabilities
from colmet.common.host.command import Call
from colmet.common.text import printable, wrap

BOUND_S = 10.0
MAX_WARNINGS = 10
NAGIOS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")  # by level
_INDENT, _REMEDY_INDENT = " " * 26, " " * 8

T = TypeVar("T")


class Level(enum.IntEnum):
    """Severity of a finding: the exit status of `colmet doctor`, and of a plug-in of Nagios."""

    PASS = 0
    WARN = 1
    FAIL = 2
    UNKNOWN = 3


_NAMES = {Level.PASS: "pass", Level.WARN: "WARN", Level.FAIL: "FAIL"}
_COLOURS = {Level.PASS: "\033[32m", Level.WARN: "\033[33m", Level.FAIL: "\033[31m"}
_PLAIN = "\033[0m"


class Finding(NamedTuple):
    """A result of a check."""

    level: Level  # severity
    found: str  # the state found
    remedy: str = ""  # the fix, with a command if there is one; "" if none is needed


Findings = Union[Finding, Iterable[Finding]]


class Check(NamedTuple):
    """A check of a daemon."""

    group: str  # heading of its findings
    name: str
    sides: tuple[str, ...]  # daemons it applies to
    function: Callable[[Any], Findings]
    fine: str = ""  # the finding if the function has none
    bound_s: float = BOUND_S  # seconds after which it is abandoned

    def run(self, target: Any) -> list[Finding]:
        """Return the findings about a daemon."""
        found = run_check(lambda: self.function(target), self.bound_s)
        return found or ([good(self.fine)] if self.fine else [])


class Result(NamedTuple):
    """A finding of a check of a daemon."""

    side: str
    check: Check
    finding: Finding


def good(found: str) -> Finding:
    """Return a finding: all is well."""
    return Finding(Level.PASS, found)


def warn(found: str, remedy: str = "") -> Finding:
    """Return a finding: something is missing, or will be."""
    return Finding(Level.WARN, found, remedy)


def fail(found: str, remedy: str = "") -> Finding:
    """Return a finding: it cannot work like this."""
    return Finding(Level.FAIL, found, remedy)


def severe(found: str, remedy: str) -> Finding:
    """Return a finding: it cannot work like this, as far as this process sees: the daemon may have more rights."""
    return fail(found, remedy) if capabilities.has_all() else warn(found, remedy)


class Unchecked(Exception):
    """Raised by a check that cannot be carried out; the text is the reason."""


class TimedOut(Exception):
    """Raised if a call did not end within its timeout."""


class _ThreadWarnings(logging.Handler):
    """Keeps the warnings of each thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.by_thread: dict[int, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kept = self.by_thread.setdefault(record.thread or 0, [])
        if len(kept) < MAX_WARNINGS:
            kept.append(record.getMessage())


_WARNINGS = _ThreadWarnings()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Colmet's warnings for `take_warnings`, and log nothing to standard error meanwhile."""
    logger = logging.getLogger("colmet")
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(_WARNINGS)
    try:
        yield
    finally:
        logger.removeHandler(_WARNINGS)
        logger.propagate = propagated


def take_warnings() -> list[str]:
    """Return this thread's records at WARNING and above within `quiet`, since the last call."""
    return _WARNINGS.by_thread.pop(threading.get_ident(), [])


def bounded(function: Callable[[], T], bound_s: float) -> T:
    """Return the result of a function that runs in a thread, abandoned after a timeout.

    Raises TimedOut if it had not returned by then; Exception as the function raises.
    """
    call = Call(function, "check")
    if not call.wait(bound_s):
        raise TimedOut(f"no answer within {bound_s:g} s")
    return call.result()


def run_check(function: Callable[[], Findings], bound_s: float = BOUND_S) -> list[Finding]:
    """Return the findings of a check; the last one reports a check not carried out, or not completed."""
    found: list[Finding] = []

    def look() -> bool:
        take_warnings()  # of an ended thread with the same number
        result = function()
        found.extend([result] if isinstance(result, Finding) else result)  # one by one
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
    except (ColmetError, OSError, TimedOut) as err:
        what = "the rest could not be checked" if found else "could not be checked"
        problem = warn(f"{what}: {err}", "")
    except Exception as err:  # noqa: BLE001 - the other checks go on
        problem = warn(f"could not be checked, a defect of colmet doctor: {type(err).__name__}: {err}", "report it")
    return [*found, problem]


def run_checks(checks: Iterable[Check], side: str, target: Any) -> list[Result]:
    """Return the findings of the checks of a daemon, in their order."""
    return [Result(side, check, finding) for check in checks if side in check.sides for finding in check.run(target)]


# -- printing of findings --


def as_json(results: Sequence[Result]) -> str:
    """Return all findings as JSON."""
    findings: list[dict[str, Any]] = [
        {
            "daemon": result.side,
            "group": result.check.group,
            "check": result.check.name,
            "level": result.finding.level.name.lower(),
            "found": result.finding.found,
            "remedy": result.finding.remedy,
        }
        for result in results
    ]
    worst = max([result.finding.level for result in results], default=Level.PASS)
    about = {"host": socket.gethostname(), "version": __version__, "level": worst.name.lower()}
    return json.dumps({**about, "findings": findings}, indent=2)


def as_text(results: Sequence[Result], only_wrong: bool, width: int, colours: bool) -> Iterator[str]:
    """Yield the findings as lines for people, or only those with a problem."""
    shown = [result for result in results if not only_wrong or result.finding.level != Level.PASS]
    side = group = ""
    for result in shown:
        if result.side != side:
            side, group = result.side, ""
            system = os.uname()
            yield f"colmet-{side} on {printable(system.nodename)}, Linux {printable(system.release)}"
        if result.check.group != group:
            group = result.check.group
            yield f"\n{group}"
        yield from _lines(result, width, colours)
    if results and not only_wrong:
        levels = [result.finding.level for result in results]
        yield ""
        yield ", ".join([f"{levels.count(level)} {name}" for level, name in _NAMES.items()])


def _lines(result: Result, width: int, colours: bool) -> Iterator[str]:
    level, found, remedy = result.finding
    name = _NAMES[level]
    first = f"  {name}  {result.check.name:18}"
    width = max(width, len(_INDENT) + 30)
    lines = wrap(printable(found), width, first, _INDENT)
    if remedy:
        lines += wrap(printable(remedy), width, f"{_REMEDY_INDENT}-> ", f"{_REMEDY_INDENT}   ")
    if colours:
        lines[0] = lines[0].replace(name, f"{_COLOURS[level]}{name}{_PLAIN}", 1)
    yield from lines


class DaemonVerdict(NamedTuple):
    """The state of a running daemon."""

    findings: Sequence[Finding]  # problems, the worst first; if there are none, the good findings
    figures: Sequence[tuple[str, float, str]] = ()  # name, value, unit

    @property
    def level(self) -> Level:
        """Return the worst level: the exit status."""
        return self.findings[0].level

    @property
    def texts(self) -> list[str]:
        """Return the texts of the findings."""
        return [finding.found for finding in self.findings]

    def lines(self, daemon: str) -> list[str]:
        """Return a line for each finding."""
        return [f"colmet-{daemon} {NAGIOS[level]}: {text}" for level, text, _ in self.findings]

    def line(self, daemon: str) -> str:
        """Return the line of a plug-in of Nagios: text, then figures behind a bar."""
        figures = " ".join([f"{name}={value:g}{unit}" for name, value, unit in self.figures])
        text = "; ".join(self.texts).replace("|", "/").replace("\n", " ")
        return f"COLMET {daemon.upper()} {NAGIOS[self.level]} - {text}{' | ' * bool(figures)}{figures}"
