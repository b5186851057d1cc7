"""What the machine gives to tests: rights, fake roots, cgroups of jobs; and what to do where it lacks something."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

from colmet.common.host.host import Host
from colmet.node.kernel import clib
from tests.support.place import skip_refused

TREES = Path(__file__).parents[1] / "data/trees"


LIB_RAPL = Path(clib.HERE) / "lib_rapl"


def open_files(below=""):
    """Number of open descriptors, or of those of files below a path, without those of earlier tests' garbage."""
    gc.collect()
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the list itself
            found += os.readlink(f"/proc/self/fd/{number}").startswith(below)
    return found


class FakeRoot:
    """A made-up `/`, and the Host that reads it."""

    def __init__(self, path):
        self.path = path
        self.host = Host(root=str(path))

    def write(self, name, text):
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text)
        return path

    def mkdir(self, name):
        path = self.path / name.lstrip("/")
        path.mkdir(parents=True)
        return path

    def link(self, name, target):
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def tree(self, name):
        """The files and links of a machine, as `data/trees/NAME.txt` lists them.

        A line is `path text` (a newline comes behind the text, `\\n` in it is another one), `path -> target` for a
        symbolic link, or a comment that begins with `#`.
        """
        for line in (TREES / f"{name}.txt").read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            path, _, text = line.partition(" ")
            if text.startswith("-> "):
                self.link(path, text[3:])
            else:
                self.write(path, text.replace("\\n", "\n") + "\n")
        return self


def cgroup_mount(controller):
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        if kind == "cgroup" and controller in options.split(","):
            return Path(point)
    return None


class CgroupRoot:
    """A cgroup v1 directory in which a test makes jobs as OAR does.

    In cpuset where the machine has it; else in a hierarchy without controllers, which behaves alike for who only
    reads the tasks. `cpuacct` is the same directory there, or None.
    """

    def __init__(self, stack):
        self._stack = stack
        point = cgroup_mount("cpuset")
        if point is None:
            point = Path(tempfile.mkdtemp(prefix="colmet-test-"))
            stack.callback(point.rmdir)
            command = ["mount", "-t", "cgroup", "-o", "none,name=colmet-test", "colmet-test", str(point)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                skip_refused(f"no cgroup v1 can be mounted: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", str(point)], check=False)
        self.path = self.make(point / f"colmet-test-{os.getpid()}-{time.monotonic_ns()}")
        cpuacct = cgroup_mount("cpuacct")
        self.cpuacct = self.make(cpuacct / self.path.name) if cpuacct else None

    def make(self, path):
        path.mkdir()
        self._stack.callback(self.remove, path)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (path / name).exists():
                (path / name).write_text((path.parent / name).read_text())
        return path

    @staticmethod
    def remove(path):
        for _ in range(100):
            with contextlib.suppress(OSError):
                if path.exists():
                    path.rmdir()
                return
            time.sleep(0.05)

    def job(self, name, controllers=()):
        """The cgroups of a new job: in cpuset and cpuacct, and in other v1 controllers that the machine has."""
        job = JobCgroup(self.make(self.path / name), self.make(self.cpuacct / name) if self.cpuacct else None)
        for controller in controllers:
            point = cgroup_mount(controller)
            if controller in job.directories or point is None:
                continue
            same = [path for path in job.directories.values() if point in path.parents]  # mounted together
            job.directories[controller] = same[0] if same else self.make(point / f"{self.path.name}-{name}")
        return job


class JobCgroup:
    def __init__(self, path, cpuacct):
        self.path = path
        self.cpuacct = cpuacct
        self.directories = {"cpuset": path, **({"cpuacct": cpuacct} if cpuacct else {})}
        self._processes = []

    def start(self, *command, **options):
        """Start a command in the job."""
        files = [path / "cgroup.procs" for path in dict.fromkeys(self.directories.values())]
        script = "".join(f"echo $$ > '{file}'; " for file in files) + 'exec "$@"'
        process = subprocess.Popen(["/bin/sh", "-c", script, "sh", *command], text=True, **options)
        self._processes.append(process)
        command_line = Path(f"/proc/{process.pid}/cmdline")
        while process.poll() is None and command_line.read_bytes().split(b"\0")[0] in (b"", b"/bin/sh"):
            time.sleep(0.002)  # not yet in the cgroup, or in the middle of an exec
        return process

    def cpu_s(self):
        """CPU time as the kernel counts it for the cgroup."""
        if self.cpuacct is None:
            skip_refused("no cpuacct of cgroup v1")
        return int((self.cpuacct / "cpuacct.usage").read_text()) / 1e9

    def close(self):
        for process in self._processes:
            process.kill()
            process.communicate()


def fork():
    """Return what os.fork() does; Python warns of threads beside it: those of libraries, without locks held."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
