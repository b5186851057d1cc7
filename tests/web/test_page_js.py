"""The pure functions of the page's JavaScript, by node's own test runner: tests/page_js."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from colmet.web.server import FOLDER
from tests.support.place import cannot_run

pytestmark = pytest.mark.slow  # not every bare system is to get node for these
TESTS = Path(__file__).parents[1] / "page_js"
OLDEST = 18  # has a test runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tests with the page beside them, as modules: without this file node takes .js for another kind."""
    made = tmp_path_factory.mktemp("page")
    shutil.copytree(TESTS, made, dirs_exist_ok=True)
    shutil.copytree(FOLDER, made / "static")
    (made / "package.json").write_text('{"type": "module"}')
    return made


@pytest.mark.parametrize("name", sorted(path.name for path in TESTS.glob("*.test.mjs")))
def test_the_pages_functions(folder, name):
    if not shutil.which("node"):
        cannot_run("no node: apt-get install nodejs")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    if int(version.strip().lstrip("v").split(".")[0]) < OLDEST:
        pytest.skip(f"node {version.strip()} has no test runner, {OLDEST} has")
    done = subprocess.run(
        ["node", "--test", name], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"^# pass [1-9]", done.stdout, re.M) or "pass" in done.stdout
