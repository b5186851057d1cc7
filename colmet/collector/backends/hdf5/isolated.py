"""Child process for reading possibly damaged HDF5 files: the HDF5 library can crash or hang on them.

The child receives one request, a line of JSON, on its standard input. This stays open, so that the child ends with its
parent. Its answer is lines of JSON: each name before and after reading it, log messages, finally the result.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from colmet.collector.backends.hdf5 import last_rows, repair
from colmet.collector.backends.hdf5.h5file import Tails, Undo
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.repair import Salvaged
from colmet.common.errors import OutputUnavailable
from colmet.common.runtime import python_child
from colmet.common.runtime.files import write_all
from colmet.common.runtime.wakeup import readable

log = logging.getLogger(__name__)

QUIET_S = 600.0  # timeout between two lines, enough for the longest table
MAX_CRASHES = 16
# Other signals come from outside: a service stop, Ctrl-C, a machine out of memory.
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_ERRORS = {"Damaged": Damaged, "OutputUnavailable": OutputUnavailable}


class _CrashedError(Exception):
    """The library crashed or hung on the object named by `at`."""

    def __init__(self, how: str, at: str) -> None:
        super().__init__(f"the HDF5 library {how} on {at or 'opening it'}")
        self.at = at


def verify(path: str, expected: int | None, undo: Undo, tails: Tails) -> None:
    """Run `repair.verify` in a child, with the same errors; a crash of the library raises Damaged, too."""
    try:
        _ask("verify", [path, expected, undo, tails], set())
    except _CrashedError as err:
        raise Damaged(f"{path}: {err}") from err


def last_row_s(path: str) -> int:
    """Run `last_rows.last_row_s` in a child, with the same errors; a crash of the library raises Damaged, too."""
    try:
        return int(_ask("last_row_s", [path], set()))
    except _CrashedError as err:
        raise Damaged(f"{path}: {err}") from err


def salvage(source: str, target: str, kept_by: str, expected: int | None, undo: Undo, tails: Tails) -> Salvaged:
    """Run `repair.salvage` in a child, with the same errors; objects crashing the library are skipped."""
    skip: list[str] = []
    read: set[str] = set()
    for crashes in range(MAX_CRASHES + 1):
        # last attempt after repeated crashes: only tables read before
        only = sorted(read) if crashes == MAX_CRASHES else None
        try:
            return Salvaged(*_ask("salvage", [source, target, kept_by, expected, undo, tails, skip, only], read))
        except _CrashedError as err:
            log.error("damaged file: %s, which is skipped", err)
            skip.append(err.at)
    raise OutputUnavailable(f"cannot read {source}: the HDF5 library crashes on it")


def _ask(task: str, arguments: list[Any], read: set[str]) -> Any:
    """Return the result of a task run in a child; add the names of tables read by it to `read`."""
    command, environment = python_child.command(f"from {__name__} import main; main()"), python_child.environment()
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    except OSError as err:
        raise OutputUnavailable(f"cannot start {sys.executable}: {err.strerror}") from err
    with process:
        try:
            at = ""
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin.fileno(), [task, arguments])
            for line in _lines(process.stdout.fileno()):
                kind, content = json.loads(line)
                if kind == "at":
                    at = content
                elif kind == "read":
                    read.add(content)
                elif kind == "log":
                    log.error("%s", content)
                elif kind == "result":
                    return content
                else:
                    raise _ERRORS.get(kind, OutputUnavailable)(content)
            if -process.wait() in CRASHES:
                raise _CrashedError(f"crashed ({signal.Signals(-process.returncode).name})", at)
            raise OutputUnavailable(
                f"{sys.executable}, which was to read an HDF5 file, ended too early (status {process.returncode})"
            )
        except TimeoutError:
            raise _CrashedError(f"came to no end in {QUIET_S:g} s", at) from None
        except BrokenPipeError as err:
            raise OutputUnavailable(f"{sys.executable}, which was to read an HDF5 file, does not start") from err
        finally:
            process.kill()


def _lines(descriptor: int) -> Iterator[bytes]:
    """Yield whole lines until the end of the stream; TimeoutError after `QUIET_S` seconds without data."""
    rest = b""
    while True:
        if not readable([descriptor], QUIET_S):
            raise TimeoutError
        part = os.read(descriptor, 65536)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


def _send(descriptor: int, message: Any) -> None:
    write_all(descriptor, json.dumps(message).encode() + b"\n")


# -- in the child process --


def _answer(message: Any) -> None:
    """Send a line to the parent; exit if the parent has ended."""
    try:
        _send(1, message)
    except BrokenPipeError:
        os._exit(1)


class _ParentHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _answer(["log", record.getMessage()])


def main() -> None:
    """Run the task requested on standard input."""
    asked = sys.stdin.buffer.readline()
    if not asked.endswith(b"\n"):  # the parent has ended
        return
    task, arguments = json.loads(asked)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, handlers=[_ParentHandler()])
    tasks: Mapping[str, Any] = {
        "verify": repair.verify,
        "salvage": repair.salvage,
        "last_row_s": last_rows.last_row_s,
    }
    try:
        result = tasks[task](*arguments, report=lambda kind, name: _answer([kind, name]))
    except (Damaged, OutputUnavailable) as err:
        _answer([type(err).__name__, str(err)])
    except Exception as err:  # noqa: BLE001 - the parent reports it
        _answer(["OutputUnavailable", f"{type(err).__name__}: {err}"])
    else:
        _answer(["result", result])


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(1)
