"""Packaging of Colmet."""

import re
from pathlib import Path

from setuptools import find_packages, setup

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
    return [line for line in lines if line and not line.startswith("#")]


def read_readme() -> str:
    """The long description; empty where the README was left out of the copy."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="colmet",
    version=read_version(),
    description="Monitors what every job on an HPC cluster uses, measured on its nodes",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    license="GPL-3.0-or-later",
    python_requires=">=3.9",
    packages=find_packages(include=["colmet", "colmet.*"]),
    install_requires=read_requirements("requirements.txt"),
    extras_require={"test": read_requirements("requirements-test.txt")},
    entry_points={
        "console_scripts": [
            "colmet-node = colmet.node.main:main",
            "colmet-collector = colmet.collector.main:main",
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
        "Topic :: System :: Monitoring",
    ],
)
