"""Child process for reading HDF5 files that may be torn or of others: the HDF5 library can crash or hang on them.

The child receives one task, JSON, on its standard input, and answers on its standard output.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from typing import Any

from colmet.collector.backends.hdf5.check import ERRORS, TASKS
from colmet.collector.backends.hdf5.checkpoint import Tails, Undo
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.common.errors import OutputUnavailable
from colmet.common.host.command import python_command, python_environment
from colmet.common.host.files import write_all

QUIET_S = 600  # limit for the longest table
# Other signals come from outside: a service stop, Ctrl-C, a machine out of memory.
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def check(path: str, expected: int | None, undo: Undo, tails: Tails) -> None:
    """Run `check.check` in a child, with the same errors; a crash of the library raises Damaged, too."""
    _ask("check", path, expected, undo, tails)


def last_row_s(path: str) -> int:
    """Run `check.last_row_s` in a child, with the same errors; a crash of the library raises Damaged, too."""
    return int(_ask("last_row_s", path))


def _ask(task: str, path: str, *arguments: Any) -> Any:
    """Return the result of a task run in a child."""
    command, environment = python_command(f"from {__name__} import main; main()"), python_environment()
    asked = json.dumps([task, [path, *arguments]]).encode()
    try:
        done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, env=environment, check=False)
    except OSError as err:
        raise OutputUnavailable(f"cannot start {sys.executable}: {err.strerror}") from err
    if -done.returncode in CRASHES:
        raise Damaged(f"{path}: the HDF5 library crashed on it ({signal.Signals(-done.returncode).name})")
    if -done.returncode == signal.SIGALRM:
        raise Damaged(f"{path}: reading a table of it comes to no end in {QUIET_S} s")
    if done.returncode:
        raise OutputUnavailable(
            f"{sys.executable}, which was to read {path}, ended too early (status {done.returncode})"
        )
    kind, content = json.loads(done.stdout)
    if kind != "result":
        raise ERRORS[kind](content)
    return content


def main() -> None:
    """Run the task on standard input, in the child process."""
    asked = sys.stdin.buffer.read()
    if not asked:  # the parent has ended
        return
    task, arguments = json.loads(asked)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        answer = ["result", TASKS[task](*arguments, report=lambda: signal.alarm(QUIET_S))]
    except tuple(ERRORS.values()) as err:
        answer = [type(err).__name__, str(err)]
    except Exception as err:  # noqa: BLE001 - the parent reports it
        answer = ["OutputUnavailable", f"{type(err).__name__}: {err}"]
    with contextlib.suppress(BrokenPipeError):  # the parent has ended meanwhile
        write_all(sys.stdout.fileno(), json.dumps(answer).encode())
