"""Shared by tests: PATIENCE, answers_of, report_of, schemathesis, texts_of."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from colmet.web.reports import DEADLINE_S
from tests.support.place import cannot_run

# a report may need this long on a busy machine; without these, 10 s
PATIENCE = ("--request-timeout", str(round(DEADLINE_S) + 10), "--max-response-time", str(round(DEADLINE_S) + 10))


def schemathesis():
    """Its command, which is beside this Python's."""
    found = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        cannot_run("no schemathesis")
    return found


def report_of(path):
    """Options by which it writes down every answer whole."""
    options = ["--report", "har", "--report-har-path", str(path), "--output-truncate", "false"]
    return [*options, "--output-sanitize", "false"]


def answers_of(path):
    """The path, the status and the body of all answers that it has written down."""
    for entry in json.loads(Path(path).read_text())["log"]["entries"]:
        content = entry["response"]["content"]
        text = content.get("text") or ""
        if content.get("encoding") == "base64":
            text = base64.b64decode(text).decode(errors="replace")
        yield urlsplit(entry["request"]["url"]).path, entry["response"]["status"], text


def texts_of(path):
    """Their bodies."""
    return [text for _, _, text in answers_of(path)]
