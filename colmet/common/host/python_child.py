"""Another process of this Python, which runs a statement of Colmet's own.

`python -c` searches the current directory first, possibly another user's, whose modules would then have the rights of
this process. An empty path is that directory; the statement begins without it.
"""

from __future__ import annotations

import os
import sys

SAFE_PATH = "import sys; sys.path[:] = filter(None, sys.path)"  # `sys` is built in: it is found without a search


def command(statement: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of a Python that runs a statement, of one line or more, with these arguments."""
    return sys.executable, "-c", f"{SAFE_PATH}\n{statement}", *arguments


def environment() -> dict[str, str]:
    """Return this process's environment, with the paths that it has modules from, less the current directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
