"""How the C libraries are built into the package; pyproject.toml has the metadata."""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


def build_library(folder: Path) -> None:
    """Run make in the folder of a C library. One that does not build leaves its backend out: a warning, no error."""
    missing = [name for name in ("make", "gcc") if shutil.which(name) is None]
    said = ""
    if not missing:
        done = subprocess.run(
            ["make", "-C", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode == 0:
            return
        said = f":\n{done.stdout.rstrip()}"
    why = f"there is no {' and no '.join(missing)}" if missing else "make failed"
    print(
        f"warning: {folder.name} is not built, its backend will be unavailable: {why} "
        f"(Debian: apt-get install make gcc libc6-dev){said}",
        file=sys.stderr,
    )


class BuildWithLibraries(build_py):
    """Builds the C libraries where the package is put together, or in the source where that stays the package."""

    def run(self):
        """Copy the modules and the libraries' sources, then build the libraries beside these."""
        super().run()
        top = HERE if getattr(self, "editable_mode", False) else Path(self.build_lib)
        for makefile in sorted(top.glob("colmet/node/backends/lib_*/Makefile")):
            build_library(makefile.resolve().parent)


class LibraryDistribution(Distribution):
    """One that holds compiled code, though no extension of Python."""

    def has_ext_modules(self):
        """True: it belongs to this machine's platform."""
        return True


setup(
    license="GPL-3.0-or-later",  # its form in pyproject.toml differs between setuptools before and after 77
    cmdclass={"build_py": BuildWithLibraries},
    distclass=LibraryDistribution,
    # for this platform, and any Python: ctypes opens the libraries
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
