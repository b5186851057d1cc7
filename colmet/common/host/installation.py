"""What this installation has: where its documents are, and commands that install modules of some commands only."""

from __future__ import annotations

import os

# By import name: the package of the Python index, and that of Debian if its name is not python3-<module>; "" if Debian
# has none.
_PACKAGES = {"pyarrow": ("pyarrow", ""), "pynvml": ("nvidia-ml-py", ""), "zmq": ("pyzmq", "python3-zmq")}


def how_to_install(*modules: str) -> str:
    """Return the commands that install modules: ``apt-get install python3-rich, or pip install rich``."""
    names = list(dict.fromkeys(name.partition(".")[0] for name in modules))
    packages = [_PACKAGES.get(name, (name, f"python3-{name}")) for name in names]
    pip = f"pip install {' '.join(name for name, _ in packages)}"
    debian = [name for _, name in packages if name]
    return f"apt-get install {' '.join(debian)}, or {pip}" if len(debian) == len(packages) else pip


# of the packages: on Debian and RHEL, on SUSE
DIRECTORIES = ("/usr/share/doc/colmet-common/docs", "/usr/share/doc/packages/colmet-common/docs")


def document(page: str) -> str:
    """Return where a page such as `keys.md` is: the packages' file on this machine, else its place in the source."""
    paths = (f"{directory}/{page}" for directory in DIRECTORIES)
    return next((path for path in paths if os.path.isfile(path)), f"docs/{page} of Colmet's source")
