"""`colmet top` in a terminal of its own, with a real daemon that goes away and comes back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.daemons import Daemon

pytestmark = pytest.mark.live

TIMEOUT_S = 60


class Terminal:
    """`colmet top` in a pseudo-terminal of 80 by 24."""

    def __init__(self, *arguments):
        self.fd, self.end = pty.openpty()
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.end)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "colmet.commands.colmet", "top", "--interval", "0.2", *arguments],
            stdin=self.end, stdout=self.end, stderr=self.end, start_new_session=True,
            env={**environment, "TERM": "xterm", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        self.output = b""

    def read(self, wait_s):
        if select.select([self.fd], [], [], wait_s)[0]:
            with contextlib.suppress(OSError):
                self.output += os.read(self.fd, 65536)

    def screen(self):
        """What was drawn last, whole."""
        frames = self.output.decode(errors="replace").split("\x1b[H")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(frames[-2:-1]))

    def until(self, text, absent=False):
        """Read until the screen has this, or has it no more."""
        give_up = time.monotonic() + TIMEOUT_S
        while (text in self.screen()) == absent:
            assert self.process.poll() is None and time.monotonic() < give_up, self.output[-4000:].decode()
            self.read(0.1)
        return self.screen()

    def press(self, keys):
        os.write(self.fd, keys)

    def ended(self):
        """Its exit status; the terminal is as it was then."""
        give_up = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:  # read on: else it waits for room
            assert time.monotonic() < give_up
            self.read(0.05)
        self.read(0)
        assert termios.tcgetattr(self.end) == self.before
        assert self.output.rindex(b"\x1b[?1049l") > self.output.rindex(b"\x1b[?1049h")
        assert self.output.rindex(b"\x1b[?25h") > self.output.rindex(b"\x1b[?25l")
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.fd)
        os.close(self.end)


@pytest.fixture
def stack():
    with contextlib.ExitStack() as opened:
        yield opened


def state_of(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_keys_a_daemon_that_goes_and_comes_and_a_terminal_that_is_left_as_it_was(stack, tmp_path):
    place = str(tmp_path / "node.sock")

    def start():
        daemon = Daemon(
            *("colmet.node.main", tmp_path / "log", "--control-socket", place, "--zeromq-uri", "tcp://127.0.0.1:9"),
            *("-s", "0.2", "--state-dir", "", "--spool-dir", "", "--cpuset_rootpath", "/none", "-p", str(os.getpid())),
            *("--enable-jobproc",),
        )
        stack.callback(daemon.stop, signal.SIGKILL)
        daemon.said("backend on")
        return daemon

    node = start()
    terminal = Terminal("--control-socket", place)
    stack.callback(terminal.close)
    terminal.until("1 job, 1 node heard")
    assert termios.tcgetattr(terminal.end) != terminal.before
    terminal.press(b"\r")
    assert "Job 0 on 1 node" in terminal.until("waiting for:")
    terminal.press(b"n")
    terminal.until("IOW%")
    terminal.press(b"?")
    terminal.until("Any key goes back.")
    terminal.press(b" ")
    terminal.until("IOW%")
    fcntl.ioctl(terminal.end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.until("IOW%", absent=True)

    os.kill(terminal.process.pid, signal.SIGTSTP)
    give_up = time.monotonic() + TIMEOUT_S
    while state_of(terminal.process) != "T":
        assert time.monotonic() < give_up
        terminal.read(0.05)
    assert termios.tcgetattr(terminal.end) == terminal.before
    os.kill(terminal.process.pid, signal.SIGCONT)

    node.stop(signal.SIGKILL)
    terminal.until("NO ANSWER since")
    start()
    terminal.until("NO ANSWER since", absent=True)
    terminal.press(b"q")
    assert terminal.ended() == 0

    other = Terminal("--control-socket", place)
    stack.callback(other.close)
    other.until("1 node heard")
    other.process.terminate()
    assert other.ended() == 128 + signal.SIGTERM


def test_where_no_daemon_is_the_screen_is_not_taken(stack, tmp_path):
    terminal = Terminal("--control-socket", str(tmp_path / "none.sock"))
    stack.callback(terminal.close)
    while terminal.process.poll() is None:
        terminal.read(0.05)
    terminal.read(0)
    assert terminal.process.returncode == 1 and b"no daemon listens on" in terminal.output
    assert b"\x1b" not in terminal.output
