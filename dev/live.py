"""Real jobs and real daemons on this machine, for the demo, the live tests and the benchmarks."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NS = 1_000_000_000
PATIENCE_S = 60.0


class Failed(Exception):
    """A failure; the text gives the reason."""


def free_port() -> int:
    """Return a free port, as the one after it, below the ports that the kernel gives to clients (ip_local_port_range).

    No client uses it while the server is down. A client that connects to such a port while the server is down could
    even reach itself. No other process of this user gets the same port while this one lives, since a client may go on
    connecting to a port after its server has ended.
    """
    reservations = _reservations()
    while True:
        port = random.randrange(20000, 32000, 2)
        try:
            with socket.socket() as one, socket.socket() as other:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
        except OSError:
            continue
        with contextlib.suppress(BlockingIOError, PermissionError):  # fcntl(2): which of them, depends on the system
            if port not in _given:
                fcntl.lockf(reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                _given.add(port)
                return port


_given: set[int] = set()


@functools.cache
def _reservations() -> int:
    """Return a file open until the end of this process, with a lock on the byte of each port that it has."""
    path = Path(tempfile.gettempdir(), f"colmet-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def mounts(kind: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the mount points of a file system type with their options. Source: /proc/mounts."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found, options = line.split()[:4]
        if found == kind:
            yield point, set(options.split(","))


def _point_of(controller: str) -> str | None:
    """Return the mount point of a controller of cgroup v1; None without one."""
    return next((point for point, options in mounts("cgroup") if controller in options), None)


class JobRoot:
    """A directory for the cgroups of jobs, made like OAR's and removed at the end.

    OAR 2 makes cgroup v1 directories in cpuset and cpuacct. A machine without both of them gets directories of cgroup
    v2: the kernel counts the CPU time there as well.

    Args:
        name: of the directory.
        more: further controllers of cgroup v1 for jobs, if mounted.
        shared: whether others may have made it, and use it.

    Attributes:
        path: value for ``--cpuset_rootpath`` of colmet-node.

    Raises:
        Failed: no root, or no cgroups.
    """

    def __init__(self, name: str, more: Sequence[str] = (), shared: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        self._jobs: list[LiveJob] = []
        others = [point for point in map(_point_of, more) if point is not None]
        points: Sequence[str | None] = [_point_of("cpuset"), *others, _point_of("cpuacct")]
        self._scale, self._usage = 1, "cpuacct.usage"
        if None in points:
            points = [point for point, _ in mounts("cgroup2")][:1]
            self._scale, self._usage = 1000, "cpu.stat"
        if not points:
            raise Failed("this machine counts no cgroup's CPU time: mount cpuset and cpuacct, or cgroup2")
        paths = dict.fromkeys(Path(str(point)) / name for point in points)
        self._paths = list(paths)
        for path in self._paths:
            if not shared:
                _make(path, self._stack)
            elif not path.is_dir():
                _make(path, self._stack, tries=1)
        self.path = self._paths[0]

    def job(self, name: str) -> LiveJob:
        """Make the cgroups of a job."""
        stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(stack.close)
            directories = [_make(path / name, stack) for path in self._paths]
            undo.pop_all()
        made = LiveJob(directories, self._usage, self._scale, stack)
        self._jobs.append(made)
        return made

    def end(self, job: LiveJob) -> None:
        """End the remaining processes of a job, and remove its cgroups."""
        job.close()
        self._jobs.remove(job)

    def close(self) -> None:
        """End the remaining processes of all jobs, and remove everything; may be called again."""
        for job in self._jobs:
            job.close()
        self._jobs = []
        self._stack.close()


class LiveJob:
    """The cgroups of a job, made by `JobRoot.job`; `path` is the directory found by Colmet."""

    def __init__(self, paths: Sequence[Path], usage: str, scale: int, stack: contextlib.ExitStack) -> None:
        self.path = paths[0]
        self._joined = [path / "cgroup.procs" for path in paths]
        self._usage = paths[-1] / usage
        self._scale = scale
        self._stack = stack
        self._processes: list[subprocess.Popen[str]] = []

    def cpu_ns(self) -> int:
        """Return the CPU time of the job so far, counted by the kernel."""
        words = self._usage.read_text().split()
        return int(words[words.index("usage_usec") + 1] if "usage_usec" in words else words[0]) * self._scale

    def tids(self) -> list[int]:
        """Return the present tasks of the job."""
        name = "tasks" if (self.path / "tasks").exists() else "cgroup.threads"
        return [int(word) for word in (self.path / name).read_text().split()]

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command in the cgroups: its process joins them before exec."""
        script = "".join(f"echo $$ > '{path}'; " for path in self._joined) + 'exec "$@"'
        process = subprocess.Popen(["/bin/sh", "-c", script, "sh", *command], text=True, **options)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End the remaining processes, and remove the cgroups; may be called again."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._stack.close()


def _make(path: Path, stack: contextlib.ExitStack, tries: int = 100) -> Path:
    try:
        path.mkdir()
    except OSError as err:
        raise Failed(f"cannot make the cgroup {path}: {err.strerror}") from err
    stack.callback(_remove, path, tries)
    for name in ("cpuset.cpus", "cpuset.mems"):  # v1: no process can join without them
        if (path / name).exists() and not (path / "cgroup.controllers").exists():
            (path / name).write_text((path.parent / name).read_text())
    return path


def _remove(path: Path, tries: int) -> None:
    for _ in range(tries):
        with contextlib.suppress(OSError):
            path.rmdir()
        if not path.exists():
            return
        time.sleep(0.05)  # an ended process leaves its cgroup a little later


class Daemons:
    """A running colmet-collector and colmet-node, and the rows printed by the collector.

    Args:
        folder: for their log, and their socket.
        node_options: of colmet-node, besides its destination.
        collector_options: of colmet-collector, besides its address.

    Attributes:
        rows: printed by the collector and not yet taken.
        node: the process of colmet-node.
    """

    def __init__(self, folder: Path, node_options: Sequence[str], collector_options: Sequence[str] = ()) -> None:
        self._uri = f"tcp://127.0.0.1:{free_port()}"
        self.log = folder / "daemons.log"
        self.rows: queue.Queue[dict[str, Any]] = queue.Queue()
        self._node_options = node_options
        command = [sys.executable, "-m", "colmet.collector.main", "-v", "--zeromq-bind-uri", self._uri]
        command += ["--zeromq-curve-secret", ""]
        command += ["--enable-stdout-backend", "--stdout-format", "json", "--buffer-size", "1", *collector_options]
        with self.log.open("a") as log:
            self._collector = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.start_node()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start_node(self) -> None:
        """Start colmet-node; may be called again after its end."""
        command = [sys.executable, "-m", "colmet.node.main", "-v", "--zeromq-uri", self._uri, "--spool-dir", ""]
        command += ["--zeromq-curve-secret", ""]
        with self.log.open("a") as log:
            self.node = subprocess.Popen([*command, *self._node_options], stderr=log)

    def _read(self) -> None:
        assert self._collector.stdout is not None
        for line in self._collector.stdout:
            self.rows.put(json.loads(line))

    def take_rows(self) -> list[dict[str, Any]]:
        """Return the rows printed since the last call."""
        rows = []
        with contextlib.suppress(queue.Empty):
            while True:
                rows.append(self.rows.get_nowait())
        return rows

    def wait_for_row(self, wanted: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """Return the next row accepted by `wanted`, within a minute; earlier ones are discarded.

        Raises:
            Failed: a timeout, or a daemon has ended.
        """
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            self.check()
            with contextlib.suppress(queue.Empty):
                row = self.rows.get(timeout=0.2)
                if wanted(row):
                    return row
        raise Failed(f"a row did not come in {PATIENCE_S:g} s:\n{self.log.read_text()}")

    def wait_for_log(self, text: str) -> None:
        """Wait until this text is in the log of the daemons; Failed after a minute, or if a daemon ends."""
        until = time.monotonic() + PATIENCE_S
        while text not in self.log.read_text():
            self.check()
            if time.monotonic() > until:
                raise Failed(f"no {text!r} in {PATIENCE_S:g} s:\n{self.log.read_text()}")
            time.sleep(0.02)

    def check(self) -> None:
        """Raise Failed if a daemon has ended."""
        for name, process in (("colmet-collector", self._collector), ("colmet-node", self.node)):
            if process.poll() is not None:
                raise Failed(f"{name} ended with status {process.returncode}:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the node, then the collector, and wait for each; may be called again."""
        for process in (self.node, self._collector):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)
        self._reader.join(timeout=5)
        if self._collector.stdout is not None:
            self._collector.stdout.close()
