"""Programs that are asked for what they print: with a deadline, a bound on the answer, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from colmet.common.errors import CommandFailed

if TYPE_CHECKING:
    from subprocess import Popen

MAX_ANSWER = 1 << 20  # bytes; the answers of all that Colmet asks are a few kilobytes
MAX_SAID = 300  # characters of what a program says when it fails
_LOOK_MS = 20  # between two looks whether it has ended, where its pipes say nothing
_AFTER_END_S = 0.2  # for what is still in the pipes of a program that has ended
_REAP_S = 0.5  # a killed process is gone at once, unless a driver holds it


class Command:
    """One program, asked again and again, never twice at once.

    It runs in a session of its own, with messages in English. When its time is over, or `cancel` is called, its whole
    process group is killed. One that even a kill does not end (a driver holds it) is waited for: until it has gone,
    `run` fails at once instead of starting another.

    Args:
        argv: program and arguments.
        deadline_s: seconds that one run may take.
        find: says where a program is, None where it is not on this node.
        env: added to the environment.

    Attributes:
        runs: programs started.
        killed: those that were killed at their deadline.
    """

    def __init__(
        self,
        argv: Sequence[str],
        deadline_s: float,
        find: Callable[[str], str | None] = shutil.which,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.argv = list(argv)
        self.deadline_s = deadline_s
        self.runs = self.killed = 0
        self._find = find
        self._env = env or {}
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None
        self._cancelled = False

    def __str__(self) -> str:
        return " ".join(self.argv)

    def run(self) -> str:
        """What it prints to standard output.

        Raises:
            CommandFailed: it cannot be started, returns another status than 0, takes longer than its deadline, or
                prints more than `MAX_ANSWER` bytes; the text says which, and what it said.
        """
        with self._lock:
            process = self._start()
        try:
            out, said, ended = self._listen(process)
        finally:
            with self._lock:
                _kill(process)  # whatever it has started goes with it
                gone = _reap(process, _REAP_S)
                for pipe in (process.stdout, process.stderr):
                    assert pipe is not None
                    pipe.close()
        if self._cancelled:
            raise CommandFailed(self.argv, "was stopped, colmet-node ends")
        if len(out) > MAX_ANSWER:
            raise CommandFailed(self.argv, f"printed more than {MAX_ANSWER} bytes and was killed")
        if not ended:
            self.killed += 1
            left = "" if gone else "; it has not gone yet, a driver or a file system holds it"
            raise CommandFailed(self.argv, f"did not end within {self.deadline_s:g} s and was killed{left}", "late")
        if process.returncode != 0:
            raise CommandFailed(self.argv, _ending(process.returncode, said or out), "status")
        return out.decode("utf-8", "replace")

    def cancel(self) -> None:
        """Kill what runs now, from any thread; nothing is started any more."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                _kill(self._process)

    def _start(self) -> Popen[bytes]:
        import subprocess

        if self._cancelled:
            raise CommandFailed(self.argv, "is not started, colmet-node ends")
        path = self._find(self.argv[0])
        if path is None:
            raise CommandFailed(self.argv, "no such program", "absent")
        if self._process is not None and not _reap(self._process, 0):
            raise CommandFailed(
                self.argv, "was killed and has not gone yet, a driver or a file system holds it", "late"
            )
        try:
            self._process = subprocess.Popen(
                [path, *self.argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "LC_ALL": "C", **self._env},
            )
        except (OSError, ValueError) as err:
            raise CommandFailed(self.argv, f"cannot be started: {getattr(err, 'strerror', '') or err}") from err
        self.runs += 1
        return self._process

    def _listen(self, process: Popen[bytes]) -> tuple[bytes, bytes, bool]:
        """Standard output and standard error, cut behind `MAX_ANSWER`, and whether it ended by itself."""
        assert process.stdout is not None and process.stderr is not None
        out, said = bytearray(), bytearray()
        heard = {process.stdout.fileno(): out, process.stderr.fileno(): said}
        poll = select.poll()
        for fd in heard:
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + self.deadline_s
        ended = False
        while heard or not ended:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or len(out) > MAX_ANSWER:
                break
            for fd, _ in poll.poll(min(left_s * 1000, _LOOK_MS) + 0.5):
                part = os.read(fd, 1 << 16)
                heard[fd] += part
                del heard[fd][MAX_ANSWER + 1 :]
                if not part:
                    poll.unregister(fd)
                    del heard[fd]
            # looked at, but not reaped: until the group is killed, its number must stay its own
            if not ended and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended = True
                deadline = min(deadline, time.monotonic() + _AFTER_END_S)
        return bytes(out), bytes(said), ended


def _kill(process: Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _reap(process: Popen[bytes], within_s: float) -> bool:
    """Whether it has gone, or goes within that time."""
    until = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
    return True


def _ending(status: int, said: bytes) -> str:
    ending = f"was ended by signal {-status}" if status < 0 else f"returned {status}"
    text = " ".join(said.decode("utf-8", "replace").split())
    if not text:
        return ending
    return f"{ending}: {text if len(text) <= MAX_SAID else text[:MAX_SAID] + '...'}"
