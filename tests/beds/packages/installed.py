"""A system's files before and after, and a job of this machine measured by the daemons of an installation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import tables

from tests.beds.machine import tell
from tests.support.waiting import free_port

ROOT = Path(__file__).parents[3]
BURN = "import time\nwhile time.process_time() < 4: pass\nprint(time.process_time())"
# logs, and what package managers keep for themselves
NOT_FILES = re.compile(
    r"/(proc|sys|dev|run|tmp|root|var/(log|cache|tmp|lib/(rpm|dnf|apt|dpkg|systemd)))(/|$)"
    r"|/etc/(passwd|group|g?shadow|subuid|subgid)-$|/etc/\.pwd\.lock$"
)


def page(name):
    """The blocks of a page of docs/ that are run to the letter, by the word behind ```sh."""
    return dict(re.findall(r"^```sh ([\w-]+)\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.M | re.S))


def files_of(root):
    """What each file of a system is: rights, owner, and content or aim."""
    found = {}
    for folder, folders, names in os.walk(root):
        inside = folder[len(str(root)) :]
        folders[:] = [name for name in folders if not NOT_FILES.match(f"{inside}/{name}")]
        for name in [*folders, *names]:
            path = Path(folder, name)
            if not NOT_FILES.match(f"{inside}/{name}"):
                found[f"{inside}/{name}"] = _what(path)
    return found


def _what(path):
    about = path.lstat()
    if path.is_symlink():
        return os.readlink(path)
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return (about.st_mode, about.st_uid, about.st_gid, content)


def differences(before, after):
    """The names of files that are more, fewer or others."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def assert_no_trace(before, root, what):
    """Nothing in a root differs from before."""
    left = differences(before, files_of(root))
    tell(f"{what}: of {len(before)} files {len(left)} differ after removal")
    assert left == []


class Running:
    """Processes of daemons; `stop` ends them, the one started last first."""

    def __init__(self, log):
        self.log = log
        self._processes = []

    def start(self, command, **options):
        with open(self.log, "a") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
            )
        return self._processes[-1]

    def wait_for(self, text):
        until = time.monotonic() + 120
        while text not in self.log.read_text():
            assert all(one.poll() is None for one in self._processes), self.log.read_text()
            assert time.monotonic() < until, f"no {text!r} in\n{self.log.read_text()}"
            time.sleep(0.1)

    def stop(self):
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        self._processes = []


def run_job():
    """Run a job of this machine for some seconds; return its number and its CPU time in seconds."""
    number = 700_000 + os.getpid() % 100_000
    command = [sys.executable, "-m", "dev.job", str(number), sys.executable, "-S", "-c", BURN]
    used = float(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=120).stdout)
    time.sleep(3)  # longer than a period
    return number, used


def assert_stored(data, number, used, what):
    """The HDF5 files in a directory have the CPU time of a job."""
    stored = 0
    for path in data.glob("*.hdf5"):
        with tables.open_file(str(path)) as file:
            if f"/job_{number}" in file:
                stored = max(stored, file.get_node(f"/job_{number}/taskstats_default").col("cpu_total").max() / 1e9)
    tell(f"{what}: a job used {used:.3f} s of CPU time; stored are {stored:.3f} s ({stored / used:.1%})")
    assert 0.97 <= stored / used <= 1.05  # beside it the start of the interpreter, some milliseconds


def measured_job(running, collector, node, data, what):
    """Run a job under daemons, and compare its CPU time with what they stored.

    Args:
        running: for the daemons.
        collector: function of the address; it returns the command of the collector.
        node: the same of the node.
        data: the directory of the collector's HDF5 files.
        what: the name of the installation.
    """
    uri = f"tcp://127.0.0.1:{free_port()}"
    running.start(collector(uri))
    running.wait_for("listening")
    running.start(node(uri))
    running.wait_for("collector is there")
    number, used = run_job()
    running.stop()
    assert_stored(data, number, used, what)


def inside(root, user, rights, *command):
    """A command that runs in the root, as a user with some capabilities, and with this machine's namespaces."""
    kept = ",".join(["-all", *[f"+{one}" for one in rights]])
    mounts = "".join([f"mount --rbind /{name} '{root}/{name}'; " for name in ("proc", "sys", "dev")])
    script = f"set -e; {mounts}exec chroot '{root}' /usr/bin/setpriv \"$@\""
    options = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    options += [f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"]
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *options, *command]


def rights_of(unit):
    text = (ROOT / f"packaging/systemd/{unit}.service").read_text()
    names = [name[4:].lower() for name in re.search(r"^CapabilityBoundingSet=(.*)$", text, re.M)[1].split()]
    return [
        name.replace("perfmon", "cap_38") for name in names
    ]  # by its number: setpriv of Ubuntu 22.04 has no name for it


def measured_in_a_root(running, root, what):
    """Run a job under the daemons of a root, as the users and with the rights of their units."""
    common = ["--zeromq-curve-secret", "", "-v", "--control-socket", ""]
    data = root / "var/lib/colmet"

    def collector(uri):
        command = ["/usr/bin/colmet-collector", *common, "--zeromq-bind-uri", uri]
        return inside(
            root, "colmet", rights_of("colmet-collector"), *command, "--hdf5-filepath", "/var/lib/colmet/jobs"
        )

    def node(uri):
        command = [
            "/usr/bin/colmet-node",
            *common,
            "--zeromq-uri",
            uri,
            "-s",
            "1",
            "--state-dir",
            "",
            "--spool-dir",
            "",
        ]
        return inside(root, "colmet-node", rights_of("colmet-node"), *command)

    measured_job(running, collector, node, data, what)
