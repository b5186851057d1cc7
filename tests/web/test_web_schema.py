"""Requests made of the interface's own description: schemathesis asks a running server as an ordinary user and as an
administrator, and checks every answer against the description."""

from __future__ import annotations

import os
import subprocess

import pytest

from colmet.web.access import Access
from tests.support.web_facts import MadeUpFacts
from tests.support.web_schema import PATIENCE, answers_of, report_of, schemathesis
from tests.support.web_server import running
from tests.support.web_store import stored_of

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("COLMET_HTTP_EXAMPLES", "2"))  # of each route; more take longer


@pytest.fixture(scope="module")
def server(users, tmp_path_factory):
    facts = MadeUpFacts(20, 40)
    stored = stored_of(facts, tmp_path_factory.mktemp("archive"))
    with running(facts, access=Access(users, is_member=lambda *_: False), stored=stored) as one:
        yield one


@pytest.mark.parametrize("login", [pytest.param("alice:a", marks=pytest.mark.endurance), "root:r"])
def test_no_request_gets_an_answer_that_the_description_does_not_tell(server, tmp_path, login):
    command = [
        *(schemathesis(), "run", f"http://127.0.0.1:{server.port}/openapi.json", "--auth", login, "--checks", "all")
    ]
    command += ["--phases", "examples,fuzzing", "--max-examples", str(EXAMPLES), "--continue-on-failure", "--no-color"]
    command += ["--generation-database", "none", "--no-shrink", "--seed", "1"]
    command += [*PATIENCE, *report_of(tmp_path / "report.har")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    answers = list(answers_of(tmp_path / "report.har"))
    texts = [text for _, _, text in answers]
    full = {path for path, status, text in answers if status == 200 and ('"job":' in text or "<td" in text)}
    assert full >= {f"/api/v1/{name}" for name in ("jobs", "archive/jobs", "report", "report.html")}
    assert any('"alice"' in text for text in texts)
    assert any('"bob"' in text for text in texts) is (login == "root:r")
    counts = server._stats.values()
    assert counts["requests_2xx"] > 10 and counts["requests_4xx"] > 10
    assert counts["requests_5xx"] == counts["defects"] == 0
