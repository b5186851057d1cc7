"""The browsers that the page is tested in; a missing one is installed."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from dev.browsers.chromium import Chromium
from dev.browsers.firefox import Firefox
from tests.support.place import cannot_run

COMMON = Path(__file__).with_name("common.sh")
PACKAGES = {"chromium": Chromium, "firefox-esr": Firefox}


def install(package):
    """Have a package of Debian; else the test is skipped."""
    done = subprocess.run(["bash", "-c", '. "$0"; install_packages "$1"', str(COMMON), package], check=False)
    if done.returncode:
        cannot_run(f"this needs the package {package}")


@contextlib.contextmanager
def browser_of(package, profile):
    """A browser, of the package of that name, in an empty folder."""
    install(package)
    install("fonts-dejavu-core")
    with PACKAGES[package](package, str(profile)) as browser:
        yield browser
