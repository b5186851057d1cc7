"""A machine with other users and logins than this one: its own passwd, group, utmp and wtmp, for one command."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time

import pytest

from tests.support.place import mount_refusal, require

_RECORD = struct.Struct("<hxxi32s4s32s256shhiii4i20x")  # utmp(5)
BOOT, USER, DEAD = 2, 7, 8


def record(kind, user, line, ago_s, pid, host="login1.example"):
    """One login, logout or boot of utmp(5)."""
    name = "" if kind == DEAD else user
    when = int(time.time()) - ago_s
    return _RECORD.pack(
        kind, pid, line.encode(), line[-4:].encode(), name.encode(), host.encode(), 0, 0, 0, when, 0, 0, 0, 0, 0
    )


class Machine:
    """What a command sees that is run with `run`; this machine stays as it is."""

    def __init__(self, path):
        self.path = path
        self.now, self.past = [], []
        self.users = ["root:x:0:0::/root:/bin/sh"]
        self.groups = ["root:x:0:"]

    def log_in(self, user, line, ago_s, out_ago_s=None):
        """A user logs in, and out again."""
        pid = os.getpid()  # `who` wants one that lives
        self.past.append((-ago_s, record(USER, user, line, ago_s, pid)))
        if out_ago_s is None:
            self.now.append(record(USER, user, line, ago_s, pid))
        else:
            self.past.append((-out_ago_s, record(DEAD, user, line, out_ago_s, pid)))

    def add_group(self, name, number, members=()):
        self.groups.append(f"{name}:x:{number}:{','.join(members)}")

    def add_user(self, name, number, group):
        self.users.append(f"{name}:x:{number}:{group}::/:/bin/sh")

    def run(self, *command, check=True, **options):
        require(mount_refusal())
        if shutil.which("last") is None:
            # Nothing that could be installed: in Debian 13 systemd knows who is logged in.
            pytest.skip("no utmp, no last")
        files = self.path / "machine"
        files.mkdir(exist_ok=True)
        (files / "utmp").write_bytes(b"".join(self.now))
        boot = (-86400, record(BOOT, "reboot", "~", 86400, 0, "6.1.0"))
        (files / "wtmp").write_bytes(b"".join([data for _, data in sorted([boot, *self.past], key=lambda one: one[0])]))
        (files / "passwd").write_text("\n".join(self.users) + "\n")
        (files / "group").write_text("\n".join(self.groups) + "\n")
        script = (
            'set -e; cd "$1"; for name in passwd group; do mount --bind $name /etc/$name; done; '
            "mount -t tmpfs tmpfs /run; cp utmp /run/utmp; mount -t tmpfs tmpfs /var/log; cp wtmp /var/log/wtmp; "
            '[ -e /var/run/utmp ]; cd "$2"; shift 2; exec "$@"'
        )
        place = options.pop("cwd", str(self.path))
        argv = ["unshare", "-m", "sh", "-c", script, "sh", str(files), str(place), *command]
        return subprocess.run(argv, capture_output=True, text=True, check=check, timeout=60, **options)

    def shell(self, text):
        return self.run("sh", "-c", text, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}).stdout
