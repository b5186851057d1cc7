"""Packaging of Colmet."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


def read_version() -> str:
    """The version, from the source text: importing colmet would need what is only about to be installed."""
    match = re.search(r'^__version__ = "([^"]+)"$', (HERE / "colmet/__init__.py").read_text(encoding="utf-8"), re.M)
    if match is None:
        raise RuntimeError("colmet/__init__.py has no __version__ line")
    return match[1]


def read_requirements(name: str) -> list:
    """The requirements in the file `name`, without comments."""
    lines = (line.partition(" #")[0].strip() for line in (HERE / name).read_text(encoding="utf-8").splitlines())
    found = []
    for line in lines:
        if line.startswith("-r "):
            found += read_requirements(line[3:].strip())
        elif line and not line.startswith("#"):
            found.append(line)
    return found


def read_readme() -> str:
    """The long description; empty where the README was left out of the copy."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


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


LIBRARY_SOURCES = ["lib_*/Makefile", "lib_*/README.md", "lib_*/*.[ch]"]  # with them, `make` there works later, too

setup(
    name="colmet",
    version=read_version(),
    description="Monitors what every job on an HPC cluster uses, measured on its nodes",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    license="GPL-3.0-or-later",
    python_requires=">=3.9",
    packages=find_packages(include=["colmet", "colmet.*"]),
    package_data={
        "colmet": ["py.typed"],
        "colmet.node.backends": LIBRARY_SOURCES,
        "colmet.web": ["static/*", "static/vendor/uplot/*"],
    },
    exclude_package_data={"colmet.node.backends": ["lib_*/*.so"]},  # built, not copied
    cmdclass={"build_py": BuildWithLibraries},
    distclass=LibraryDistribution,
    options={
        "bdist_wheel": {"py_limited_api": "cp39"}
    },  # for this platform, and any Python: ctypes opens the libraries
    install_requires=read_requirements("requirements.txt"),
    extras_require={
        "tools": read_requirements("requirements-tools.txt"),
        "web": read_requirements("requirements-web.txt"),
        "facility": read_requirements("requirements-facility.txt"),
        "test": read_requirements("requirements-test.txt"),
        "nvidia": ["nvidia-ml-py"],
    },
    entry_points={
        "console_scripts": [
            "colmet-node = colmet.node.main:main",
            "colmet-collector = colmet.collector.main:main",
            "colmet-web = colmet.web.__main__:serve",
            "colmet = colmet.commands.colmet:main",
            "colmet-extract = colmet.commands.extract:main",
            "colmet-facility = colmet.facility.command:main",
            "afmetrics_collector = colmet.facility.afmetrics:main",
            "qmemview = colmet.gridengine.qmemview:main",
            "qmemview.py = colmet.gridengine.qmemview:main",
        ]
    },
    classifiers=[
        "Environment :: No Input/Output (Daemon)",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: 3.15",
        "Topic :: System :: Monitoring",
    ],
)
