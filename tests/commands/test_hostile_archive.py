"""An archive whose texts are hostile, and one with values of other types: no command prints the texts as they are, and
none fails otherwise than with an error."""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3

import pytest

from colmet.jobs.archive.store import ArchiveStore
from colmet.jobs.columns import HOST_COLUMNS, JOB_COLUMNS, TEXT
from tests.support.archive_data import summaries, write

EVIL = "=cmd|'/C x'!A1<script>alert(1)</script>\x1b]0;x\x07\x9b31m\u202e\r\n[red]{x}"
KEPT = ("job", "start", "host")  # the keys
SINCE = ("--since", "2025-01-01")
FORMS = [
    *[("jobs", *SINCE), ("jobs", *SINCE, "--csv"), ("jobs", *SINCE, "--columns", "name,user,project,reason,rules")],
    *[("usage", *SINCE, "--by", by, *form) for by in ("user", "queue", "host") for form in ((), ("--csv",))],
    *[("report", "1"), ("report", "1", "2"), ("report", "1", "--html", "out"), ("report", "1", "2", "--html", "out")],
    *[("report", "1", "--json"), ("jobs", *SINCE, "--json"), ("archive", "info")],
]


@pytest.fixture
def path(tmp_path):
    found = str(tmp_path / "a.archive.sqlite")
    store = ArchiveStore(found, writable=True)
    write(store, summaries(12, footprint=40))
    store.close()
    return found


@pytest.fixture
def ask(run, path, tmp_path, monkeypatch):
    monkeypatch.setattr("colmet.commands.archives.os.geteuid", lambda: 0)
    monkeypatch.chdir(tmp_path)

    def ask(*argv):
        answer = run(*argv, "--archive", path)
        written = tmp_path / "out"
        text = written.read_text() if written.exists() else ""
        written.unlink(missing_ok=True)
        return (*answer, text)

    return ask


def spoil(path, value_of):
    """Give columns of all summaries another value; None leaves a column as it is."""
    database = sqlite3.connect(path)
    with database:
        for table, columns in (("jobs", JOB_COLUMNS), ("hosts", HOST_COLUMNS)):
            for (name,) in database.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall():
                value = None if name in KEPT else value_of(name, columns[name])
                if value is not None:
                    database.execute(f'UPDATE {table} SET "{name}" = ?', [value])
    database.close()


@pytest.mark.parametrize("argv", FORMS, ids=" ".join)
def test_hostile_texts_are_shown_as_text(path, ask, argv):
    advice = json.dumps([{"rule": EVIL, "text": EVIL}])
    texts = {"state": "done", "advice": advice, "rules": "cpu-low"}
    spoil(path, lambda name, column: texts.get(name, EVIL) if column.kind == TEXT else None)
    status, out, err, page = ask(*argv)
    assert status == 0, err
    if "--json" in argv:
        json.loads(out)
    if "--csv" in argv:
        cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
        assert cells and not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
        return
    for bad in "\x1b\x07\x9b\u202e\r":
        assert bad not in out + err + page
    assert "<script>alert" not in page


@pytest.mark.parametrize("seed", [*range(6), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 20)]])
def test_values_of_other_types_are_no_defect(path, ask, seed):
    draw = random.Random(seed)
    strange = ["x", b"\xff\x00", -1, 2**62, -(2**63), 1e308, float("inf"), float("-inf"), "", 0, "9" * 400]
    spoil(path, lambda name, _: draw.choice(strange) if draw.random() < 0.3 else None)
    for argv in FORMS:
        status, _, err, _ = ask(*argv)
        assert status in (0, 1) and "Traceback" not in err, argv
