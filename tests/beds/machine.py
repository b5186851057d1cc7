"""A Debian of its own, made of nothing but packages, with systemd running in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.place import cannot_run

ROOT = Path(__file__).parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = ("mmdebstrap", "systemd-container", "util-linux")


def tell(text):
    print(text, file=sys.stderr, flush=True)


class Machine:
    """A container that has booted. Its network is a loopback of its own; what fetches packages uses the host's.

    Args:
        directory: for its files.
        packages: that it has from the start.
    """

    def __init__(self, directory, *packages):
        self.root = directory / "root"
        self._packages = ("systemd", "dbus", *packages)
        self._log = directory / "boot.log"
        self._process = None

    def make(self):
        """Install it, in memory."""
        if os.geteuid() != 0:
            cannot_run("needs root")
        done = subprocess.run([ROOT / "scripts/need.sh", *PACKAGES], capture_output=True, text=True, check=False)
        if done.returncode:
            cannot_run(done.stderr)
        command = ". /etc/os-release; echo $ID $VERSION_CODENAME"
        system, release = self._must("sh", "-c", command).split()
        if system != "debian":
            cannot_run(f"makes packages for Debian, and this is {system}")
        self.root.mkdir()
        self._must("mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "colmet-test", str(self.root))
        options = ("--variant=apt", "--dpkgopt=force-unsafe-io", "--include", ",".join(self._packages))
        self._must("mmdebstrap", *options, release, str(self.root), *self._mirrors(release))
        for name in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):  # a site may have its own
            if Path(name).exists():
                shutil.copy(name, f"{self.root}{name}")

    @staticmethod
    def _mirrors(release):
        """Where this machine has its packages from, as lines of sources.list."""
        form = "$(REPO_URI) $(CODENAME) $(RELEASE)"
        command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages", "Origin: Debian"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        uris = dict.fromkeys(line.split()[0] for line in said.splitlines() if line.split()[1] == release)
        return [f"deb {uri} {release} main" for uri in uris]

    @staticmethod
    def _must(*command, **options):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=900, **options
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def boot(self):
        """Start it; ends when systemd has started everything."""
        nspawn = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--private-network"]
        nspawn += ["--timezone=off"]  # else /etc/localtime is not for packages to set up
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [*nspawn, "--resolv-conf=replace-host", "--machine", f"colmet-{os.getpid()}", "-D", str(self.root)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 240
        while self.run("systemctl is-system-running", check=False).strip() not in ("running", "degraded"):
            if self._process.poll() is not None:
                cannot_run(f"systemd-nspawn does not start a container here: {self._log.read_text()[-2000:]}")
            assert time.monotonic() < until, self._log.read_text()[-4000:]
            time.sleep(0.2)

    def _leader(self):
        """Its process 1, as the host numbers it; '' once it has ended."""
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        except FileNotFoundError:
            children = []
        return children[0] if children else ""

    def run(self, script, check=True, fetch=False, timeout=300):
        """What a script of the shell, run in it as root in /root, prints; with `fetch` in the host's network."""
        leader = self._leader()
        if not leader:
            assert not check, self._log.read_text()[-4000:]
            return ""
        own = ["-m", "-u", "-i", "-p", "-r", "-w"] + ([] if fetch else ["-n"])
        environment = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
        if fetch:  # a mirror of PyPI that this machine is configured with
            environment.update({name: value for name, value in os.environ.items() if name.startswith(("PIP_", "http"))})
        command = ["nsenter", "-t", leader, *own, "--", "sh", "-c", f"cd /root && set -e && {script}"]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=timeout,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}\n{self.logs()}"
        return done.stdout

    def logs(self):
        """What the daemons logged."""
        return self.run("journalctl --no-pager -n 60 -u colmet-node -u colmet-collector", check=False)

    def wait_for(self, script, timeout=120):
        """Run it until it succeeds."""
        until = time.monotonic() + timeout
        while self.run(f"if (\n{script}\n)\nthen echo yes\nfi", check=False).strip()[-3:] != "yes":
            assert time.monotonic() < until, f"{script}\n{self.run(script, check=False)}\n{self.logs()}"
            time.sleep(0.5)

    def close(self):
        if self._process is not None:
            if leader := self._leader():  # with it all that runs in there ends
                os.kill(int(leader), signal.SIGKILL)
            self._process.wait(30)
        subprocess.run(["umount", "--lazy", self.root], check=False)
