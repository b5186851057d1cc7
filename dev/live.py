"""Real jobs and real daemons on this machine, for the demo, the live tests and the benchmarks."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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


class _Root:
    """Jobs that end with it."""

    def __init__(self) -> None:
        self._jobs: list[Any] = []

    def end(self, job: Any) -> None:
        """End the remaining processes of a job, and remove its directories."""
        job.close()
        self._jobs.remove(job)

    def close(self) -> None:
        """End the remaining processes of all jobs; may be called again."""
        for job in self._jobs:
            job.close()
        self._jobs = []


class JobRoot(_Root):
    """A directory for the cgroups of jobs, made like OAR's and removed at the end.

    OAR 2 makes cgroup v1 directories in cpuset and cpuacct. Where these cannot be made, the directories are of cgroup
    v2, at its top or in the cgroup of this process: the kernel counts the CPU time there as well.

    Args:
        name: of the directory, or its name by version of cgroups.
        more: further controllers of cgroup v1 for jobs, if mounted.
        shared: whether others may have made it, and use it.

    Attributes:
        path: value for ``--cpuset_rootpath`` of colmet-node.
        version: of cgroups, 1 or 2.

    Raises:
        Failed: no cgroup can be made and joined here; the text has the reason for each place.
    """

    def __init__(self, name: str | Mapping[int, str], more: Sequence[str] = (), shared: bool = False) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        reasons = []
        for version, places in _cgroup_places(more):
            paths = [place / (name if isinstance(name, str) else name[version]) for place in places]
            try:
                self._make(paths, shared)
            except Failed as err:
                reasons.append(str(err))
                continue
            self._paths, self.path, self.version = paths, paths[0], version
            return
        raise Failed("; ".join(reasons) or "no cgroup file system that counts CPU time is mounted")

    def _make(self, paths: Sequence[Path], shared: bool) -> None:
        """Make the directories, and let a process join a job in them."""
        with contextlib.ExitStack() as undo:
            for path in paths:
                if not (shared and path.is_dir()):
                    _make(path, undo, tries=1 if shared else 100)
            with contextlib.ExitStack() as trial:
                _join([_make(path / f"trial-{os.getpid()}", trial) for path in paths])
            self._stack = undo.pop_all()

    def job(self, name: str, cpus: Collection[int] = ()) -> LiveJob:
        """Make the cgroups of a job.

        Args:
            name: of the directory, as the batch system names it.
            cpus: those that the job may use; all without any.

        Raises:
            Failed: they cannot be made.
        """
        stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(stack.close)
            directories = [_make(path / name, stack, cpus=cpus) for path in self._paths]
            undo.pop_all()
        made = LiveJob(directories, self.version, cpus, stack)
        self._jobs.append(made)
        return made

    def close(self) -> None:
        """End the remaining processes of all jobs, and remove everything; may be called again."""
        super().close()
        self._stack.close()


def _cgroup_places(more: Sequence[str]) -> Iterator[tuple[int, list[Path]]]:
    """Yield the places where this process may be allowed to make cgroups: their version, and a directory each."""
    points = [_point_of("cpuset"), *filter(None, map(_point_of, more)), _point_of("cpuacct")]
    if None not in points:
        yield 1, list(dict.fromkeys([Path(str(point)) for point in points]))
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    for point, _ in mounts("cgroup2"):
        # systemd gives a user, and an engine a container, a cgroup of their own.
        for place in dict.fromkeys([Path(point), Path(point + own)]):
            yield 2, [place]


class LiveJob:
    """The cgroups of a job, made by `JobRoot.job`; `path` is the directory found by Colmet."""

    def __init__(self, paths: Sequence[Path], version: int, cpus: Collection[int], stack: contextlib.ExitStack) -> None:
        self.path = paths[0]
        self._paths = paths
        self._usage, self._scale = (paths[-1] / "cpuacct.usage", 1) if version == 1 else (self.path / "cpu.stat", 1000)
        self._cpus = cpus
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
        script = "".join(f"echo $$ > '{path}/cgroup.procs'; " for path in self._paths) + 'exec "$@"'
        process = subprocess.Popen(["/bin/sh", "-e", "-c", script, "sh", *command], text=True, **options)
        if self._cpus:
            os.sched_setaffinity(process.pid, self._cpus)
        self._processes.append(process)
        return process

    def wait(self) -> None:
        """Wait for the end of all started processes."""
        for process in self._processes:
            process.wait()

    def close(self) -> None:
        """End the remaining processes, and remove the cgroups; may be called again."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._stack.close()


class ListedRoot(_Root):
    """A directory for jobs where no cgroup can be made: plain files list the processes of each job.

    colmet-node reads them as those of cgroups, and measures the processes through /proc, and by netlink if it may.

    Args:
        path: a directory, made here.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.mkdir()
        self.path = path

    def job(self, name: str, cpus: Collection[int] = ()) -> ListedJob:
        """Make the directory of a job; see `JobRoot.job`."""
        made = ListedJob(self.path / name, cpus)
        self._jobs.append(made)
        return made


class ListedJob:
    """A job of one process and its descendants, made by `ListedRoot.job`: a thread keeps its lists up to date."""

    PERIOD_S = 0.1
    LISTS = ("cgroup.procs", "tasks")

    def __init__(self, path: Path, cpus: Collection[int]) -> None:
        path.mkdir()
        self.path = path
        self._cpus = cpus
        self._process: subprocess.Popen[str] | None = None
        self._cpu_ns = 0
        self._has_ended = threading.Event()
        for name in self.LISTS:
            (path / name).touch()
        self._thread = threading.Thread(target=self._list_processes, daemon=True)

    def cpu_ns(self) -> int:
        """Return the CPU time that the kernel counted until the job's first process ended; 0 before. See wait4(2)."""
        return self._cpu_ns

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start the job's first process, in a session of its own, by which its descendants are found."""
        self._process = subprocess.Popen(command, text=True, start_new_session=True, **options)
        if self._cpus:
            os.sched_setaffinity(self._process.pid, self._cpus)
        self._write_lists()
        self._thread.start()
        return self._process

    def _list_processes(self) -> None:
        while not self._has_ended.wait(self.PERIOD_S):
            self._write_lists()

    def _write_lists(self) -> None:
        assert self._process is not None
        tasks = list(_tasks_of_session(self._process.pid))
        processes = [pid for pid, tid in tasks if pid == tid]
        # All lines have one length, so that a reader in the middle of a write sees whole numbers.
        for name, numbers in zip(self.LISTS, (processes, [tid for _, tid in tasks])):
            with (self.path / name).open("r+") as file:
                file.write("".join(f"{number:>10}\n" for number in numbers))
                file.truncate()

    def wait(self) -> None:
        """Wait for the end of the first process."""
        assert self._process is not None
        if self._process.returncode is None:
            _, status, usage = os.wait4(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self._cpu_ns = round((usage.ru_utime + usage.ru_stime) * NS)

    def close(self) -> None:
        """End the remaining processes, and remove the directory; may be called again."""
        self._has_ended.set()
        if self._process is not None:
            self._thread.join()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.wait()
            for file in (self._process.stdin, self._process.stdout):
                if file is not None:
                    file.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _tasks_of_session(session: int) -> Iterator[tuple[int, int]]:
    """Yield process and thread of each task in a session. Source: /proc/<pid>/stat, column 6."""
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if int((directory / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                for name in os.listdir(directory / "task"):
                    yield int(directory.name), int(name)


def _make(path: Path, stack: contextlib.ExitStack, tries: int = 100, cpus: Collection[int] = ()) -> Path:
    try:
        path.mkdir()
    except OSError as err:
        raise Failed(f"cannot make the cgroup {path}: {err.strerror}") from err
    stack.callback(_remove, path, tries)
    # Of version 1: no process can join without them.
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (path / name).exists() and not (path / "cgroup.controllers").exists():
            text = (path.parent / name).read_text()
            (path / name).write_text(",".join(map(str, sorted(cpus))) if cpus and name == "cpuset.cpus" else text)
    return path


def _join(paths: Sequence[Path]) -> None:
    """Let a process join these cgroups, and end."""
    script = "".join(f"echo $$ > '{path}/cgroup.procs'; " for path in paths)
    done = subprocess.run(["/bin/sh", "-e", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition(": ")[2]
        raise Failed(f"no process can join the cgroup {paths[0].parent}: {reason}")


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
            environment = {"COLMET_PINS": "", **os.environ}  # nothing goes on counting after its end
            self.node = subprocess.Popen([*command, *self._node_options], stderr=log, env=environment)

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
