"""Jobs whose page faults, context switches, CPU time and migrations are known, in a hierarchy that has perf_event."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from colmet.common.host.host import Host
from colmet.node.jobs.job import Job
from tests.support.machine import cgroup_mount
from tests.support.place import skip_refused

EVENTS = ("page_faults", "context_switches", "task_clock", "cpu_migrations")

# Works at each line that it reads, and answers with what the kernel has counted for it meanwhile. What "events" does is
# apart from "burn", since a task is also charged for being switched, which no event of its own counts. Where it is let,
# it changes its CPU, and then runs there before the next change.
WORK = """
import json, mmap, os, resource, sys, time

def counted():
    used = resource.getrusage(resource.RUSAGE_SELF)
    try:
        lines = open("/proc/self/sched").read().splitlines()
        moved = next(int(line.split(":")[1]) for line in lines if line.startswith("se.nr_migrations"))
    except (OSError, StopIteration):
        moved = -1
    faults, switches = used.ru_minflt + used.ru_majflt, used.ru_nvcsw + used.ru_nivcsw
    return [faults, switches, (used.ru_utime + used.ru_stime) * 1e9, moved]

def events():
    for _ in range(3):
        pages = mmap.mmap(-1, 4096 * 1000)
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(pages), 4096):
            pages[at] = 1
        pages.close()
    for n in range(1000):
        os.sched_setaffinity(0, [cpus[n % len(cpus)]])
        time.sleep(0)
    os.sched_setaffinity(0, cpus)
    for _ in range(1500):
        time.sleep(0.00002)

def burn():
    end = time.thread_time() + 0.4
    while time.thread_time() < end:
        pass

counted()
cpus = sorted(os.sched_getaffinity(0))
print("ready", flush=True)
for line in sys.stdin:
    what, times = line.split()
    before = counted()
    for _ in range(int(times)):
        {"events": events, "burn": burn}[what]()
    after = counted()
    print(json.dumps([now - then for now, then in zip(after, before)]), flush=True)
"""


@contextlib.contextmanager
def hierarchy(version):
    """The mount point of a hierarchy that has perf_event: cgroup v1's, mounted for this, or v2, which has it else."""
    with contextlib.ExitStack() as stack:
        # mounting perf_event as v1 removes it from v2: not while another test counts there
        lock = stack.enter_context(open(Path(tempfile.gettempdir()) / "colmet-test-perf.lock", "a"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        v1 = cgroup_mount("perf_event")
        if version == "v1":
            yield v1 or stack.enter_context(_v1())
        elif v1 is not None:
            skip_refused("perf_event is mounted as cgroup v1, so v2 has it not")
        else:
            _give_back()
            yield unified_mount() or stack.enter_context(_mounted("cgroup2", ""))


def unified_mount():
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    return None


@contextlib.contextmanager
def _v1():
    try:
        with _mounted("cgroup", "perf_event") as point:
            try:
                yield point
            finally:
                _clear(point)
    finally:
        _give_back()


def _give_back():
    """See to it that v2 has perf_event again: a hierarchy stays, unmounted, where a group was not yet gone for good."""
    for _ in range(60):
        for _ in range(50):
            hierarchies = dict(line.split()[:2] for line in Path("/proc/cgroups").read_text().splitlines()[1:])
            if hierarchies["perf_event"] == "0":
                return
            time.sleep(0.01)
        with _mounted("cgroup", "perf_event") as point:
            _clear(point)


def _clear(point):
    """Remove the groups that a test has left in a hierarchy; those with processes stay."""
    for path, _, _ in os.walk(point, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


@contextlib.contextmanager
def _mounted(kind, options):
    point = Path(tempfile.mkdtemp(prefix="colmet-test-"))
    try:
        command = ["mount", "-t", kind, *(["-o", options] if options else []), "colmet-test", str(point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            skip_refused(f"no {kind} {options} can be mounted")
        try:
            yield point
        finally:
            subprocess.run(["umount", str(point)], check=True)
    finally:
        point.rmdir()


def remove(path):
    """Remove a cgroup whose last process may still be on its way out."""
    for _ in range(200):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
    path.rmdir()


class Worker:
    """A process in a cgroup that works on request."""

    def __init__(self, *groups):
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", WORK], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.process.stdout.readline()
        for group in groups:
            (group / "cgroup.procs").write_text(str(self.process.pid))
        self.groups = groups

    def begin(self, what, times=1):
        """Have it work: "events" or "burn", a number of times."""
        self.process.stdin.write(f"{what} {times}\n")
        self.process.stdin.flush()

    def counted(self):
        """What the kernel has counted of it: page faults, context switches, ns of CPU time, migrations (or -1)."""
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def kill(self):
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


@contextlib.contextmanager
def worker_jobs(point, count=1):
    """Jobs with a worker each, in groups of their own below a mount point; as (Job, Worker)."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            group = point / f"colmet-test-{os.getpid()}-{time.monotonic_ns()}_{number}"
            group.mkdir()
            stack.callback(remove, group)
            worker = Worker(group)
            stack.callback(worker.kill)
            made.append((Job(Host(), number, "bob", [str(group)]), worker))
        yield made
