"""A head node for a test, with a network of its own; what is written below /etc, /root and /var/lib goes with it."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.place import cannot_run
from tests.support.waiting import wait_for

COMMON = Path(__file__).with_name("common.sh")
MOUNTS = """
ip link set lo up
mount -t tmpfs tmpfs "$1"
for folder in /etc /root /var/lib; do
    mkdir -p "$1/upper$folder" "$1/work$folder"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=$1/upper$folder,workdir=$1/work$folder" "$folder"
done
touch "$1/ready"
exec sleep infinity
"""


def install_packages(*packages):
    """Install Debian packages, without starting what they bring."""
    done = subprocess.run(
        ["bash", "-c", '. "$0"; install_packages "$@"', COMMON, *packages], capture_output=True, text=True, check=False
    )
    if done.returncode:
        cannot_run(done.stderr)


class Site:
    """Runs commands of the shell there, with those of Colmet first in PATH.

    Args:
        directory: for its files.
    """

    def __init__(self, directory):
        if os.geteuid():
            cannot_run("needs root, for namespaces")
        self.folder = directory / "folder"
        self.folder.mkdir()
        self._programs = directory / "bin"
        self._programs.mkdir()
        for program in Path(sys.executable).parent.glob("colmet*"):
            (self._programs / program.name).symlink_to(program)
        mounts = directory / "mounts"
        mounts.mkdir()
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "bash", "-euc", MOUNTS, "sh", mounts],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        ready = Path(f"/proc/{self._keeper.pid}/root{mounts}/ready")
        wait_for(lambda: ready.exists() or self._keeper.poll() is not None)
        if self._keeper.poll() is not None:
            cannot_run(f"namespaces with overlays are refused: {self._keeper.stderr.read()}")

    def program(self, name, text):
        """Put a program in front of those of this machine."""
        path = self._programs / name
        path.write_text(text)
        path.chmod(0o755)

    def path(self, name):
        """The file of this name there, for this process."""
        return Path(f"/proc/{self._keeper.pid}/root{name}")

    def command(self, script, fetch=False, **variables):
        """The arguments and the environment of a process that runs a script there; `fetch`: in the host's network."""
        namespaces = ["--mount"] if fetch else ["--mount", "--net"]
        environment = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "http"))}
        environment.update(PATH=f"{self._programs}:/usr/sbin:/usr/bin:/sbin:/bin", LANG="C.UTF-8", HOME="/root")
        arguments = ["nsenter", "--target", str(self._keeper.pid), *namespaces, f"--wdns={self.folder}", "--"]
        return [*arguments, "bash", "-euo", "pipefail", "-c", script], {**environment, **variables}

    def run(self, script, status=0, **options):
        """What a script prints on standard output."""
        arguments, environment = self.command(script, **options)
        done = subprocess.run(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == status, f"{script}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def type_password(self, script, password, **variables):
        """Run a script on a terminal, and type the password whenever it asks for one."""
        arguments, environment = self.command(script, **variables)
        terminal, inner = pty.openpty()
        said = b""
        try:
            arguments = ["setsid", "--wait", "--ctty", *arguments]
            process = subprocess.Popen(arguments, env=environment, stdin=inner, stdout=inner, stderr=inner)
            os.close(inner)
            with contextlib.suppress(OSError):  # EIO: the other end is closed
                while part := os.read(terminal, 4096):
                    said += part
                    if part.lower().rstrip().endswith(b":"):
                        os.write(terminal, password.encode() + b"\n")
            assert process.wait(60) == 0, said.decode()
        finally:
            os.close(terminal)

    def close(self):
        """End all that runs there."""
        self._keeper.kill()
        self._keeper.communicate()
