"""Fixtures that the tests share: fake trees, real job cgroups, and what to do where a machine cannot run a test."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from colmet.common.daemon import systemd

pytest.register_assert_rewrite("tests.support", "tests.beds")  # their assertions show the values, too
from dev.live import Failed, JobRoot  # noqa: E402
from tests.support import place  # noqa: E402
from tests.support.machine import LIB_RAPL, CgroupRoot, FakeRoot  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
# programs that tests start find colmet, dev and tests, whatever their working directory is
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
# How long an example lasts says how busy the machine is; each run on each Python draws other examples.
settings.register_profile("colmet", deadline=None, max_examples=30, database=None)
settings.load_profile("colmet")
os.environ["COLMET_PINS"] = ""  # programs in the kernel end with the agents that tests start
os.umask(0o022)  # tests know the modes of their files, whatever the umask of who starts them is
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of programs are started: each would compile all it imports
sys.dont_write_bytecode = False
gc.disable()  # collecting thousands of tests makes no garbage worth the search
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """List what was skipped and why, the shortest reasons first."""
    reasons = Counter([report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())])
    if reasons:
        terminalreporter.section("skipped")
    for reason in sorted(reasons, key=len):
        text = " ".join(reason.removeprefix("Skipped: ").split())
        terminalreporter.write_line(f"{reasons[reason]:>5}  {text}")


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # the tests stay, and each full collection would pass through all of them
    gc.enable()


@pytest.fixture
def root():
    """The test needs root of the machine: root of a container may not measure."""
    place.require(place.machine_refusal())


@pytest.fixture
def root_directory(root):
    """A directory for cgroups of jobs, in each hierarchy."""
    try:
        made = JobRoot(f"colmet-test-{os.getpid()}-{time.monotonic_ns()}")
    except Failed as err:
        place.skip_refused(str(err))
    yield made
    made.close()


@pytest.fixture
def no_collection():
    """No garbage is collected at the depth where a parser gives up: up to Python 3.11 that may be fatal."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def mounts():
    """The test mounts file systems in a mount namespace of its own."""
    place.require(place.mount_refusal())


@pytest.fixture
def other_user():
    """The test has a process that becomes another user."""
    place.require(place.user_refusal())


@pytest.fixture
def other_owner():
    """The test gives a file to another owner."""
    place.require(place.owner_refusal())


@pytest.fixture
def fake(tmp_path):
    return FakeRoot(tmp_path)


@pytest.fixture(scope="session")
def lib_rapl_built(tmp_path_factory):
    place.require_programs("make", "cc")
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
    monkeypatch.setattr(systemd, "FOLDERS", ())
