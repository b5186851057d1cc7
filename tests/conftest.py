"""Fixtures that the tests share: fake trees, real job cgroups, and what to do where a machine cannot run a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from colmet.common.runtime import service_unit

pytest.register_assert_rewrite("tests.support", "tests.beds")  # their assertions show the values, too
from tests.support.machine import LIB_RAPL, CgroupRoot, FakeRoot, cannot_run, missing_rights  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
# programs that tests start find colmet, dev and tests, whatever their working directory is
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
settings.register_profile("colmet", deadline=None)  # how long an example lasts says how busy the machine is
settings.load_profile("colmet")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of programs are started: each would compile all it imports
sys.dont_write_bytecode = False
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it


@pytest.fixture
def root():
    """The test needs root of the machine: root of a container may not measure."""
    if missing := missing_rights():
        cannot_run(missing)


@pytest.fixture
def fake(tmp_path):
    return FakeRoot(tmp_path)


@pytest.fixture(scope="session")
def lib_rapl_built(tmp_path_factory):
    if not (shutil.which("make") and shutil.which("cc")):
        cannot_run("lib_rapl needs make and a C compiler")
    folder = tmp_path_factory.mktemp("clib") / "lib_rapl"
    shutil.copytree(LIB_RAPL, folder, ignore=shutil.ignore_patterns("*.so"))
    done = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def lib_rapl(lib_rapl_built, monkeypatch):
    """The library of this source, built in a folder of its own, is the one that is loaded."""
    monkeypatch.setenv("LIB_RAPL_PATH", str(lib_rapl_built))
    return lib_rapl_built


@pytest.fixture
def cgroups(root):
    """Make job cgroups: `cgroups.job("bob_42")`; all are removed at the end."""
    with contextlib.ExitStack() as stack:
        made = CgroupRoot(stack)
        make_job = made.job

        def job(name, controllers=()):
            new = make_job(name, controllers)
            stack.callback(new.close)
            return new

        made.job = job
        yield made


@pytest.fixture
def public():
    """A directory that all users may pass; pytest's own are its user's alone, again with each session that starts."""
    with tempfile.TemporaryDirectory(prefix="colmet-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(autouse=True)
def no_units(monkeypatch):
    """No unit of this machine: as root, --check-config assumes the rights of the user whom it names."""
    monkeypatch.setattr(service_unit, "FOLDERS", ())
