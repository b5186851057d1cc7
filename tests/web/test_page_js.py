"""The pure functions of the page's JavaScript, by node's own test runner: tests/page_js."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from colmet.web.app import FOLDER
from tests.support.place import cannot_run

TESTS = Path(__file__).parents[1] / "page_js"


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
    done = subprocess.run(
        ["node", "--test", name], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"^# pass [1-9]", done.stdout, re.M) or "pass" in done.stdout
