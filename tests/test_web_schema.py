"""Requests made of the interface's own description: schemathesis asks a running server as an ordinary user and as an
administrator, and checks every answer against the description."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cannot_run
from test_web_access import cheap
from test_web_server import running
from web_facts import MadeUpFacts

from colmet.web.access import Access
from colmet.web.credentials import Credential
from colmet.web.limits import Failures

pytestmark = pytest.mark.slow

EXAMPLES = 3  # of each route; tests/beds/test_http.py takes more


def schemathesis():
    """Its command, which is beside this Python's."""
    found = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        cannot_run("needs schemathesis")
    return found


def report_of(path):
    """Options by which it writes down every answer whole."""
    options = ["--report", "har", "--report-har-path", str(path), "--output-truncate", "false"]
    return [*options, "--output-sanitize", "false"]


def texts_of(path):
    """The bodies of all answers that it has written down."""
    for entry in json.loads(Path(path).read_text())["log"]["entries"]:
        content = entry["response"]["content"]
        text = content.get("text") or ""
        yield base64.b64decode(text).decode() if content.get("encoding") == "base64" else text


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users"
    lines = [Credential("alice", cheap("a")), Credential("root", cheap("r"), frozenset({"admin"}))]
    path.write_text("".join(f"{line.text()}\n" for line in lines))
    path.chmod(0o600)
    access = Access(str(path), is_member=lambda *_: False)
    access._names = access._addresses = Failures(1_000_000, 1.0)  # it tries wrong passwords, too
    with running(MadeUpFacts(20, 40), access=access) as one:
        yield one


@pytest.mark.parametrize("login", ["alice:a", "root:r"])
def test_no_request_gets_an_answer_that_the_description_does_not_tell(server, tmp_path, login):
    command = [
        schemathesis(),
        "run",
        f"http://127.0.0.1:{server.port}/openapi.json",
        "--auth",
        login,
        "--checks",
        "all",
    ]
    command += ["--phases", "examples,fuzzing", "--max-examples", str(EXAMPLES), "--continue-on-failure", "--no-color"]
    command += ["--generation-database", "none", "--no-shrink", "--seed", "1"]
    command += report_of(tmp_path / "report.har")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    texts = list(texts_of(tmp_path / "report.har"))
    assert any('"alice"' in text for text in texts)
    assert any('"bob"' in text for text in texts) is (login == "root:r")
    counts = server._counts.values()
    assert counts["requests_2xx"] > 10 and counts["requests_4xx"] > 10
    assert counts["requests_5xx"] == counts["defects"] == 0
