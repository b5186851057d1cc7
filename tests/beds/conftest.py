"""Fixtures that tests of this folder share."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile

import pytest

from tests.beds.browsers import PACKAGES, browser_of
from tests.beds.pages import members_in, served, with_archive
from tests.support import web_facts
from tests.support.daemons import start, start_collector, uri
from tests.support.health_daemons import daemons
from tests.support.place import cannot_run
from tests.support.web_store import stored_of

__all__ = ["daemons", "start", "start_collector", "uri"]

# A wheel that holds axe.min.js of axe-core 4.12.1, and the sum of that file as npm has it, which brings much more.
AXE = ("axe-playwright-python==0.1.8", "66a8aaa95a8b044a7fd74a5435873bf04ff65a1ca75567c921b7509742085a14")


# In a second browser each run but CI has these, which open every view; COLMET_BROWSERS=all has all others, too.
IN_BOTH = () if os.environ.get("CI") else ("test_page_views.py", "test_page_tasks.py")


def pytest_collection_modifyitems(config, items):
    """Leave out the other tests of a second browser: they double the time of the page."""
    if os.environ.get("COLMET_BROWSERS") == "all":
        return
    second = [f"[{name}" for name in list(PACKAGES)[1:]]
    left_out = [one for one in items if one.path.name not in IN_BOTH and any(mark in one.name for mark in second)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [one for one in items if one not in set(left_out)]


@pytest.fixture(scope="module", params=PACKAGES)
def browser(request, tmp_path_factory):
    """Each browser after the other."""
    with browser_of(request.param, tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """For slow steps, and what its protocol alone can measure."""
    with browser_of("chromium", tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The program that looks for what keeps people from using a page."""
    folder = tmp_path_factory.mktemp("axe")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", "."]
    done = subprocess.run([*command, AXE[0]], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        cannot_run(f"this needs {AXE[0]} by pip: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        text = wheel.read("axe_playwright_python/axe.min.js").rstrip(b"\n")  # the wheel's has an empty line more
    assert hashlib.sha256(text).hexdigest() == AXE[1]
    return text.decode()


@pytest.fixture(scope="module")
def site():
    """The page of few nodes and jobs, for what does not depend on their numbers; with a store, without an archive."""
    facts = web_facts.MadeUpFacts(60, 480)
    with served(facts, stored=stored_of(facts)) as url:
        yield url


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    """The page of few nodes and running jobs, and ended jobs in an archive."""
    with with_archive(tmp_path_factory.mktemp("archive"), 60, 48, 400) as url:
        yield url


@pytest.fixture(scope="module")
def large_site(tmp_path_factory):
    """The page of 500 nodes, 2,000 running jobs and as many that ended."""
    with with_archive(tmp_path_factory.mktemp("archive"), 500, 2000, 2000) as url:
        yield url


@pytest.fixture
def members(tmp_path):
    """A file of logins, as `members_in` makes."""
    return members_in(tmp_path)
