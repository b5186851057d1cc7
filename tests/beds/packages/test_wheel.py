"""The wheel and the source distribution, installed with and without a compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beds.packages.installed import ROOT

LOAD = """
from colmet.common.errors import BackendUnavailable
from colmet.node.kernel import clib
from colmet.node.backends import rapl
from colmet.node.kernel import perfevents
for folder, module, variable in (("lib_perf_hw", perfevents, "A"), ("lib_rapl", rapl, "B")):
    try:
        print(clib.load(folder, module.ABI, variable)._name)
    except BackendUnavailable as err:
        print("missing:", err)
"""


def built(script, tmp_path_factory):
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "scripts" / script, directory, sys.executable], capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("build-wheel.sh", tmp_path_factory)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return built("build-sdist.sh", tmp_path_factory)


class Environment:
    """A virtual environment that has what Colmet requires, and not Colmet."""

    def __init__(self, folder, path):
        self.bin = folder / "bin"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": ""}
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # each module of the tests' environment, but for Colmet itself
        required = subprocess.run(
            [sys.executable, "-c", "import numpy; print(numpy.__path__[0])"], check=True, capture_output=True, text=True
        )
        theirs = Path(required.stdout.strip()).parent
        (ours,) = folder.glob("lib/python3*/site-packages")
        for one in theirs.iterdir():
            if not (ours / one.name).exists() and not re.match(
                r"colmet|pip-|setuptools-|.*\.pth$|.*editable", one.name
            ):
                (ours / one.name).symlink_to(one)

    def run(self, program, *arguments):
        done = subprocess.run(
            [self.bin / program, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    def install(self, path, *options):
        return self.run("pip", "--disable-pip-version-check", "install", "--no-deps", *options, path)


@pytest.fixture
def bare(tmp_path):
    """An environment of a machine without make and gcc."""
    return Environment(tmp_path / "bare", str(tmp_path / "nothing"))


def test_the_wheel_is_for_each_glibc_since_2_17_and_each_python(wheel):
    """As auditwheel says, which reads the symbols of its libraries."""
    name, tags = wheel.name.split("-", 1)[0], wheel.name.split("-")[2:]
    assert name == "colmet" and tags[:2] == ["cp39", "abi3"]
    versions = [tuple(map(int, found)) for found in re.findall(r"manylinux_(\d+)_(\d+)_", tags[2])]
    assert versions and min(versions) <= (2, 17), wheel.name


def test_the_wheel_has_its_libraries_where_there_is_no_compiler(wheel, bare):
    bare.install(wheel)
    said = bare.run("python", "-c", LOAD)
    assert said.count(str(bare.bin.parent)) == 2 and "missing" not in said
    assert "procstats" in bare.run("colmet-node", "--once")
    assert bare.run("colmet-collector", "--version")


def test_the_source_installs_without_a_compiler_and_says_what_is_missing(sdist, bare):
    said = bare.install(sdist, "-v")
    for library in ("lib_perf_hw", "lib_rapl"):
        assert f"warning: {library} is not built, its backend will be unavailable: there is no make and no gcc" in said
    said = bare.run("python", "-c", LOAD)
    commands = re.findall(r"missing: .*`make -C (\S+)` builds it \(it needs gcc\)", said)
    assert len(commands) == 2, said
    assert "procstats" in bare.run("colmet-node", "--once")
    for folder in commands:  # as soon as there is one
        subprocess.run(["make", "-C", folder], check=True, capture_output=True)
    assert "missing" not in bare.run("python", "-c", LOAD)


def test_the_source_builds_its_libraries_where_there_is_a_compiler(sdist, tmp_path):
    environment = Environment(tmp_path / "whole", os.environ["PATH"])
    environment.install(sdist)
    assert "missing" not in environment.run("python", "-c", LOAD)
