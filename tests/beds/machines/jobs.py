"""Jobs of known use, in cgroups as batch systems make them, beside what the kernel's own files have of them. Runs in a
machine under its own Python, without Colmet.

usage: jobs.py PERIOD_S    of colmet-node; prints the facts of all jobs as JSON
       jobs.py work KIND NUMBER

On cgroup v2 its own cgroup is delegated to it, below oar.slice: jobs are named as those of OAR 3. On v1 they are named
as those of Slurm, in all hierarchies.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

TOP = "/sys/fs/cgroup"
PLACE = "/var/tmp/colmet-bed"  # on a disk
MIB = 1 << 20
MEMORY = 200 * MIB
TRANSFER = 64 * MIB
# Name -> number of the job and command. A task's use after its record, when the kernel frees it, is known by what
# its parent is charged for it: so the shells of b1 and b2 live until a tick has seen that. Of a parent that ends within
# the same period it is unattributed.
STORM = "end=$(($(date +%s) + 15)); while [ $(date +%s) -lt $end ]; do {}; done; sleep 11"
JOBS = {
    "a": (1, "work spin 6 & work spin 6 & wait"),
    "b1": (2, STORM.format("/bin/true")),
    "b2": (3, STORM.format("(date | (cat | tr 1 2) | cat)")),
    "b3": (4, "for step in 1 2 3; do work spin 2; done"),
    "c": (5, "work hold 600"),
    "d": (6, "work transfer 0"),
    "e": (7, "work crowd 3"),
    "f": (8, "work eat 1; work spin 1"),
    "g1": (9, "work thread 2"),
    "g2": (10, "work daemon 3"),
    "g3": (11, "work spin 3; work spin 3"),
    "g4": (12, "work spin 2"),
}  # fmt: skip
KERNEL_FILES = ("cpu.stat", "cpuacct.", "memory.", "io.stat", "blkio.throttle.io_", "pids.")
LIMITED = "f"  # in memory
LIMIT = 40 * MIB


# -- what jobs do --


def spin(seconds):
    """Use so much CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        for _ in range(1000):
            pass


def hold(seconds):
    """Use memory until its use has been read, or for so long."""
    memory = mmap.mmap(-1, MEMORY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, MEMORY, mmap.PAGESIZE):
        memory[at] = 1
    write(f"{PLACE}/held", "")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not os.path.exists(f"{PLACE}/read"):
        time.sleep(0.1)


def transfer(_):
    """Write a file, and read it from the disk."""
    path = f"{PLACE}/transfer"
    with open(path, "wb") as file:
        for _ in range(TRANSFER // MIB):
            file.write(b"x" * MIB)
        file.flush()
        os.fsync(file.fileno())
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_DIRECT)) as file:
        room = mmap.mmap(-1, MIB)  # aligned, as O_DIRECT needs it
        while file.readinto(room):
            pass


def crowd(seconds):
    """Have three tasks compete for one CPU, and write down how long each waited for it, as the scheduler has it."""
    for n in range(3):
        if not os.fork():
            os.sched_setaffinity(0, {0})
            spin(seconds)
            with open("/proc/self/schedstat") as file, open(f"{PLACE}/waited-{n}", "w") as note:
                note.write(file.read().split()[1])
            os._exit(0)
    for _ in range(3):
        os.wait()
    for pid in ("self", os.getppid()):  # and these before
        with open(f"/proc/{pid}/schedstat") as file, open(f"{PLACE}/waited-{pid}", "w") as note:
            note.write(file.read().split()[1])


def eat(_):
    """Use memory beyond the limit, in a child that the kernel kills."""
    if not os.fork():
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        hold(60)
    os.wait()


def exec_by_thread(seconds):
    """Use CPU time in a thread, which then becomes another program under the id of the process."""

    def run():
        spin(seconds)
        os.execv(sys.executable, [sys.executable, __file__, "work", "spin", str(seconds)])

    threading.Thread(target=run).start()
    time.sleep(3600)


def daemon(seconds):
    """Use CPU time in a process of a session of its own, whose parent has ended."""
    if os.fork():
        os.wait()
        time.sleep(1)
        return
    os.setsid()
    if not os.fork():
        spin(seconds)
    os._exit(0)


WORK = {
    **{"spin": spin, "hold": hold, "transfer": transfer, "crowd": crowd},
    **{"eat": eat, "thread": exec_by_thread, "daemon": daemon},
}


# -- their cgroups --


class Cgroups:
    """Of the jobs, in each hierarchy."""

    def __init__(self):
        self.is_v2 = os.path.exists(f"{TOP}/cgroup.controllers")
        if self.is_v2:
            with open("/proc/self/cgroup") as file:
                own = TOP + file.read().split("::", 1)[1].strip()
            os.makedirs(f"{own}/runner")
            write(f"{own}/runner/cgroup.procs", os.getpid())
            with open(f"{own}/cgroup.controllers") as file:
                write(f"{own}/cgroup.subtree_control", " ".join(f"+{name}" for name in file.read().split()))
            self._places = {"unified": f"{own}/oar-u0-j%d"}
        else:
            # those that are mounted: newer kernels lack some, and systemd makes directories for all
            mounts = [line.split() for line in read("/proc/self/mounts").splitlines()]
            folders = [folder for _, folder, kind, options, *_ in mounts if kind == "cgroup" and "name=" not in options]
            self._places = {folder: f"{folder}/slurm_bed/uid_0/job_%d" for folder in folders}

    def make(self, job):
        for place in self._places.values():
            path = place % job
            os.makedirs(path, exist_ok=True)
            for parent in (
                (os.path.dirname(os.path.dirname(path)), os.path.dirname(path), path) if not self.is_v2 else ()
            ):
                for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one
                    if os.path.exists(f"{parent}/{name}"):
                        with open(f"{os.path.dirname(parent)}/{name}") as file:
                            write(f"{parent}/{name}", file.read())

    def enter(self, job, pid=0):
        for place in self._places.values():
            write(f"{place % job}/cgroup.procs", pid or os.getpid())

    def limit_memory(self, job, size):
        for name in ("memory.max", "memory.limit_in_bytes"):
            for place in self._places.values():
                if os.path.exists(f"{place % job}/{name}"):
                    write(f"{place % job}/{name}", size)

    def members(self, job):
        pids = set()
        for place in self._places.values():
            with open(f"{place % job}/cgroup.procs") as file:
                pids.update(map(int, file.read().split()))
        return pids

    def files(self, job):
        """The kernel's files of a job's cgroups, by name."""
        found = {}
        for place in self._places.values():
            for path in glob.glob(f"{place % job}/*"):
                name = os.path.basename(path)
                if name.startswith(
                    ("cpu.stat", "cpuacct.", "memory.", "io.stat", "blkio.throttle.io_", "pids.")
                ) or name.endswith(".pressure"):
                    with contextlib.suppress(OSError), open(path) as file:
                        found[name] = file.read()
        return found

    def remove(self, job):
        for place in self._places.values():
            os.rmdir(place % job)


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


# -- all of them --


def start(cgroups, name):
    job, command = JOBS[name]
    cgroups.make(job)
    if name == LIMITED:
        cgroups.limit_memory(job, LIMIT)
    shell = f'work() {{ {sys.executable} {os.path.abspath(__file__)} work "$@"; }}; {command}'
    return subprocess.Popen(["sh", "-c", shell], preexec_fn=lambda: cgroups.enter(job), stdout=subprocess.DEVNULL)


def main(period_s):
    shutil.rmtree(PLACE, ignore_errors=True)
    os.makedirs(PLACE)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the daemon of job g2 is reaped here
    cgroups = Cgroups()
    facts = {"is_v2": cgroups.is_v2, "started": time.time(), "jobs": {}}
    running = {name: start(cgroups, name) for name in JOBS}
    # the processes of g3 go on in the cgroup of g4
    time.sleep(8)
    for pid in cgroups.members(JOBS["g3"][0]):
        with contextlib.suppress(ProcessLookupError):
            cgroups.enter(JOBS["g4"][0], pid)
    holding = JOBS["c"][0]
    while not os.path.exists(f"{PLACE}/held"):
        time.sleep(0.1)
    time.sleep(1.5 * period_s)
    facts["held"] = {"at": time.time(), "files": cgroups.files(holding), "is_running": running["c"].poll() is None}
    time.sleep(period_s)
    write(f"{PLACE}/read", "")
    for one in running.values():
        one.wait()
    while any(cgroups.members(job) for job, _ in JOBS.values()):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.2)
    facts["ended"] = time.time()
    time.sleep(2.5 * period_s)  # a tick has all of it
    facts["read"] = time.time()
    for name, (job, _) in JOBS.items():
        facts["jobs"][name] = {"job": job, "status": running[name].returncode, "files": cgroups.files(job)}
    facts["waited_ns"] = sum(int(read(path)) for path in glob.glob(f"{PLACE}/waited-*"))
    time.sleep(1.5 * period_s)  # and another one finds it as it was read
    for job, _ in JOBS.values():
        cgroups.remove(job)
    print(json.dumps(facts))


def read(path):
    with open(path) as file:
        return file.read()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        WORK[sys.argv[2]](float(sys.argv[3]))
    else:
        main(float(sys.argv[1]))
