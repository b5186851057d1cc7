"""Machines of machine.sh, for tests."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from pathlib import Path

from tests.support.place import cannot_run

SCRIPT = str(Path(__file__).with_name("machine.sh"))
DIRECTORY = Path(os.environ.get("MACHINES") or f"{os.environ.get('TMPDIR') or '/tmp'}/colmet-machines")  # its own
CANNOT = 77
V1 = ("systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1")
# Whether the collector has a batch of the node. (A verdict counts ticks that an emulated machine had no time for.)
SENDS = "colmet status node --json | grep -q '\"batches_acknowledged\": [1-9]'"
# in the Python that has Colmet
PYTHON = "$([ -x /opt/colmet/bin/python ] && echo /opt/colmet/bin/python || echo python3)"


def script(*arguments, timeout=900, check=True, **environment):
    """What machine.sh prints."""
    done = subprocess.run(
        ["nice", "-n", "15", SCRIPT, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=timeout, env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode == CANNOT:
        cannot_run(done.stderr.strip())
    assert not check or done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@functools.cache
def image(name, packages=()):
    """Make an image where it is missing, with these packages and this tree's Colmet, once in a run of the tests.

    With COLMET_INSTALLED=yes the images are used as they are.
    """
    if os.environ.get("COLMET_INSTALLED") != "yes":
        script("image", name, *packages, timeout=1800)
        script("install", name, timeout=1800)
    return name


class Machine:
    """One of them, on a copy of an image.

    Args:
        name: of the machine, its host name.
        image_name: see machine.sh.
        words: for the kernel's command line.
        packages: more of them in the image.
        environment: for machine.sh: FORWARD, DISKS, MEMORY ...
    """

    def __init__(self, name, image_name, *words, packages=(), **environment):
        self.name = name
        self._words = words
        self._environment = environment
        self._start = ("start", name, image(image_name, packages), *words)
        self.address = self.kernel = ""

    def start(self):
        self._came_up(script(*self._start, **self._environment))
        return self

    def boot(self, *words):
        """Start it again, with what is on its disks; words: more of them for the kernel's command line."""
        self._came_up(script("boot", self.name, *self._words, *words, **self._environment))

    def _came_up(self, printed):
        self.address, _, _, self.kernel = printed.split()

    def run(self, command, timeout=600, check=True):
        return script("run", self.name, command, timeout=timeout, check=check)

    def write(self, to, text):
        """Put a text into a file."""
        self.run(f"mkdir -p '{os.path.dirname(to)}'; cat >'{to}' <<'END'\n{text}END")

    def put(self, path, to):
        script("put", self.name, str(path), to)

    def get(self, path, to):
        script("get", self.name, path, str(to))

    def stop(self):
        script("stop", self.name)

    def cut(self):
        script("cut", self.name)

    def drop(self):
        script("drop", self.name)

    def wait_for(self, command, timeout=300):
        """Run it until it succeeds."""
        until = time.monotonic() + timeout
        while self.run(f"if {command}; then echo yes; fi", check=False).strip()[-3:] != "yes":
            assert time.monotonic() < until, f"{command}\n{self.logs()}"
            time.sleep(1)

    def logs(self):
        """What the daemons logged."""
        return self.run("journalctl --no-pager -n 60 -u colmet-node -u colmet-collector", check=False)

    def one_machine(self):
        """Start both daemons, as docs/install.md has it for one machine."""
        self.run(
            'systemctl restart systemd-sysctl; colmet enrol "$(hostname)" --collector tcp://127.0.0.1:5556 && '
            "systemctl start colmet-collector.socket colmet-collector colmet-node"
        )
        self.wait_for(SENDS)
