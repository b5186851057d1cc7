"""Where this installation has the documents."""

from __future__ import annotations

import os

# of the packages: on Debian and RHEL, on SUSE
DIRECTORIES = ("/usr/share/doc/colmet-common/docs", "/usr/share/doc/packages/colmet-common/docs")


def document(page: str) -> str:
    """Return where a page such as `keys.md` is: the packages' file on this machine, else its place in the source."""
    paths = (f"{directory}/{page}" for directory in DIRECTORIES)
    return next((path for path in paths if os.path.isfile(path)), f"docs/{page} of Colmet's source")
