"""The folder in which pages are run."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

from tests.support.place import mount_refusal, require, require_programs, skip_refused


@contextlib.contextmanager
def page_folder():
    """On a disk, as the kernel counts no bytes written to memory; without layers of file systems no test can run."""
    require_programs("chroot")
    require(mount_refusal())
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        tried = [Path(name, "tried", part) for part in ("lower", "upper", "work")]
        for path in tried:
            path.mkdir(parents=True)
        option = ",".join([f"{path.name}dir={path}" for path in tried])
        command = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", option, str(tried[0])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            skip_refused("no overlay can be mounted")
        folder = Path(name, "folder")
        folder.mkdir()
        yield folder
