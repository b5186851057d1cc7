"""The folder in which pages are run."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.machine import cannot_run


@contextlib.contextmanager
def page_folder():
    """On a disk, as the kernel counts no bytes written to memory; without layers of file systems no test can run."""
    for program in ("unshare", "chroot", "mount"):
        if shutil.which(program) is None:
            cannot_run(f"{program} is not installed")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        tried = [Path(name, "tried", part) for part in ("lower", "upper", "work")]
        for path in tried:
            path.mkdir(parents=True)
        option = ",".join([f"{path.name}dir={path}" for path in tried])
        command = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", option, str(tried[0])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            cannot_run(f"no layers of file systems here: {done.stderr}")
        folder = Path(name, "folder")
        folder.mkdir()
        yield folder
