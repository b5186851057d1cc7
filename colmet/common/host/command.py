"""External programs run with a deadline, a bounded answer and complete clean-up, and calls that may hang for ever."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from colmet.common.errors import CommandFailed

if TYPE_CHECKING:
    from subprocess import Popen

MAX_ANSWER = 1 << 20  # bytes; the answers of all programs that Colmet runs are a few kilobytes
MAX_SAID = 300  # characters quoted from the output of a failed program
_LOOK_MS = 20  # between two checks for its end while its pipes are silent
_AFTER_END_S = 0.2  # to read the rest of the pipes of a program that has ended
_REAP_S = 0.5  # a killed process is gone at once, unless a driver blocks it
# Python 3.10 to 3.11.3 (https://github.com/python/cpython/issues/104372) blocks all other threads until the program's
# file is open, for ever on a hung network file system. It does not if a group is to be set, even the current one.
_GROUP = os.getegid() if (3, 10) <= sys.version_info < (3, 11, 4) else None
_HELD = "it has not gone yet, a driver or a file system holds it"


class Command:
    """One program run repeatedly, never twice at once.

    It runs in its own session, with messages in English. Its whole process group is killed at the deadline, or by
    `cancel`. A driver can keep even a killed process. Until that process has gone, and all its descendants with open
    pipes, `run` fails at once instead of starting another.

    Args:
        argv: program and arguments.
        deadline_s: longest duration of one run in seconds.
        find: returns the path of a program, None if it is not on this node.
        env: added to the environment.
        hide: words masked in every text of this command.
        max_answer: largest output in bytes.
        sift: called once for each run; returns a function from a part of standard output to its kept bytes. None
            keeps all. Only kept bytes count towards `max_answer`.
        statuses: exit statuses with a valid answer.

    Attributes:
        runs: programs started.
        killed: runs killed at their deadline.
    """

    def __init__(
        self,
        argv: Sequence[str],
        deadline_s: float,
        find: Callable[[str], str | None] = shutil.which,
        env: Mapping[str, str] | None = None,
        hide: Iterable[str] = (),
        max_answer: int = MAX_ANSWER,
        sift: Callable[[], Callable[[bytes], bytes]] | None = None,
        statuses: Sequence[int] = (0,),
    ) -> None:
        self.argv = list(argv)
        self.deadline_s = deadline_s
        self.runs = self.killed = 0
        self._find = find
        self._env = env or {}
        self._max_answer = max_answer
        self._sift = sift
        self._statuses = statuses
        self._hide = sorted(filter(None, hide), key=len, reverse=True)
        self._lock = threading.Lock()  # a process is reaped or killed, not both at once; never locked for long
        self._process: Popen[bytes] | None = None
        self._cancelled = False

    def __str__(self) -> str:
        return self._shown(" ".join(self.argv))

    def run(self) -> str:
        """Run the program; return its standard output as UTF-8. Errors are those of `run_bytes`."""
        return self.run_bytes().decode("utf-8", "replace")

    def run_bytes(self, given: bytes = b"") -> bytes:
        """Run the program; return its standard output.

        Args:
            given: its standard input, from a file without a name, so that no program has to read it.

        Raises:
            CommandFailed: it cannot be started, returns another status, exceeds its deadline, or prints more
                than `max_answer` bytes; the text has the reason and the program's own message.
        """
        process = self._start(given)
        ended = False
        try:
            out, said, ended = self._listen(process)
        finally:
            gone = self._end(process, ended)
        if self._cancelled:
            raise self._failure("was stopped, colmet-node ends")
        if len(out) > self._max_answer or len(said) > self._max_answer:
            besides = ", skipped output not counted," if self._sift else ""
            raise self._failure(f"printed more than {self._max_answer} bytes{besides} and was killed")
        if not ended:
            self.killed += 1
            left = "" if gone else f"; {_HELD}"
            raise self._failure(f"did not end within {self.deadline_s:g} s and was killed{left}", "late")
        if process.returncode not in self._statuses:
            raise self._failure(
                _ending(process.returncode, self._shown((said or out).decode("utf-8", "replace"))), "status"
            )
        return out

    def cancel(self) -> None:
        """Kill the current run, from any thread, and start no more. Does not wait."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                _kill(self._process)

    def _shown(self, text: str) -> str:
        for word in self._hide:
            text = text.replace(word, "***")
        return text

    def _failure(self, text: str, why: str = "") -> CommandFailed:
        return CommandFailed([self._shown(word) for word in self.argv], text, why)

    def _start(self, given: bytes = b"") -> Popen[bytes]:
        import subprocess

        if self._cancelled:
            raise self._failure("is not started, colmet-node ends")
        if self._process is not None and not self._has_gone(self._process):
            raise self._failure(f"was killed before; {_HELD}", "late")
        path = self._find(self.argv[0])
        if path is None:
            raise self._failure("no such program", "absent")
        try:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(_file_of(given)) if given else None
                process = subprocess.Popen(
                    [path, *self.argv[1:]],
                    stdin=file or subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    cwd="/",
                    env={**os.environ, "LC_ALL": "C", **self._env},
                    group=_GROUP,
                )
        except (OSError, ValueError) as err:
            raise self._failure(f"cannot be started: {getattr(err, 'strerror', '') or err}") from err
        self.runs += 1
        with self._lock:
            self._process = process
        return process

    def _listen(self, process: Popen[bytes]) -> tuple[bytes, bytes, bool]:
        """Return standard output and standard error, cut behind `max_answer`, and whether the program ended itself."""
        assert process.stdout is not None and process.stderr is not None
        out, said = bytearray(), bytearray()
        heard = {process.stdout.fileno(): out, process.stderr.fileno(): said}
        sift = self._sift() if self._sift else bytes
        poll = select.poll()
        for fd in heard:
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + self.deadline_s
        ended = False
        while (heard or not ended) and not self._cancelled:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or max(len(out), len(said)) > self._max_answer:
                break
            for fd, _ in poll.poll(min(left_s * 1000, _LOOK_MS) + 0.5):
                part = os.read(fd, 1 << 16)
                heard[fd] += sift(part) if heard[fd] is out else part
                if not part:
                    poll.unregister(fd)
                    del heard[fd]
            # polled, but not reaped: until the group is killed, its number must not be reused
            if not ended and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended = True
                deadline = min(deadline, time.monotonic() + _AFTER_END_S)
        return bytes(out), bytes(said), ended

    def _end(self, process: Popen[bytes], ended: bool) -> bool:
        """Kill the program and its descendants; return whether all have gone."""
        with self._lock:
            _kill(process)
        until = time.monotonic() + _REAP_S
        while not self._has_gone(process, ended):
            if time.monotonic() >= until:
                return False  # its open pipes show later whether it has gone
            time.sleep(0.005)
        return True

    def _has_gone(self, process: Popen[bytes], ended: bool = False) -> bool:
        """Return whether it has gone; after a kill, all other users of its pipes as well."""
        with self._lock:
            if process.poll() is None:
                return False
        pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
        if not ended and not all(_at_end(pipe.fileno()) for pipe in pipes):
            return False
        for pipe in pipes:
            pipe.close()
        with self._lock:
            self._process = None
        return True


def _file_of(content: bytes) -> IO[bytes]:
    import tempfile  # the agent needs none

    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _kill(process: Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _at_end(fd: int) -> bool:
    """Return whether a pipe has no writer left; discards its contents, a part at each call."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0)) and not os.read(fd, 1 << 16)


def _ending(status: int, said: str) -> str:
    ending = f"was ended by signal {-status}" if status < 0 else f"returned {status}"
    text = " ".join(said.split())
    if not text:
        return ending
    return f"{ending}: {text if len(text) <= MAX_SAID else text[:MAX_SAID] + '...'}"


T = TypeVar("T")
POLL_S = 0.1  # between two looks at whether the program is to stop


class Call(Generic[T]):
    """A call in a thread of its own, begun now. If it hangs, the thread does, and nothing else.

    Args:
        function: what is called.
        name: of the thread.

    Attributes:
        began: by the monotonic clock.
        ended_ns: its end, since the epoch; 0 before.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.began = time.monotonic()
        self.ended_ns = 0
        self._function: Callable[[], T] | None = function
        self._result: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            assert self._function is not None
            self._result = self._function()
        except BaseException as err:  # noqa: BLE001 - raised again where the result is taken
            self._error = err
        self._function = None
        self.ended_ns = time.time_ns()

    def wait(self, timeout_s: float, stopping: Callable[[], bool] = lambda: False, grace_s: float = 1.0) -> bool:
        """Wait for the end; return whether it has come.

        Args:
            timeout_s: the longest time.
            stopping: whether the program is to stop; is called ten times a second. From then on it waits for `grace_s`.
            grace_s: as `stopping` says.
        """
        end = time.monotonic() + timeout_s
        is_stopping = False
        while self.thread.is_alive() and (left_s := end - time.monotonic()) > 0:
            self.thread.join(min(POLL_S, left_s))
            if not is_stopping and stopping():
                end, is_stopping = min(end, time.monotonic() + grace_s), True
        return bool(self.ended_ns)

    def result(self) -> T:
        """Return what the ended call has returned, or raise its exception."""
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result


# `python -c` searches the current directory first, possibly another user's, whose modules would then have the rights of
# this process. An empty path is that directory. `sys` is built in: it is found without a search.
SAFE_PATH = "import sys; sys.path[:] = filter(None, sys.path)"


def python_command(statement: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of a Python that runs a statement, of one line or more, with these arguments."""
    return sys.executable, "-c", f"{SAFE_PATH}\n{statement}", *arguments


def python_environment() -> dict[str, str]:
    """Return this process's environment, with the paths that it has modules from, less the current directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
