from __future__ import annotations

import json
import os

import pytest

from colmet.collector.journal.output_state import OutputState
from colmet.common.errors import OutputUnavailable

JOURNAL = "0123456789abcdef"


def test_what_is_saved_is_there_again(tmp_path):
    path = str(tmp_path / "x.json")
    state = OutputState(path, JOURNAL, 3, 10)
    assert state.is_new and (state.position, state.keep_from, state.notes) == (10, 10, {})
    state.save(12, {"file": "é"}, keep_from=5)
    again = OutputState(path, JOURNAL, 3, 20)
    assert not again.is_new and (again.position, again.keep_from, again.notes) == (12, 5, {"file": "é"})
    again.save(14)
    assert (again.keep_from, again.notes) == (14, {"file": "é"})
    again.save(13, {}, keep_from=99)
    assert OutputState(path, JOURNAL, 3, 20).keep_from == 13
    assert os.stat(path).st_mode & 0o077 == 0 and os.listdir(tmp_path) == ["x.json"]


def test_where_it_cannot_be_saved_the_former_stays(tmp_path):
    state = OutputState(path := str(tmp_path / "x.json"), JOURNAL, 0, 0)
    state.save(1, {"a": 1})
    (tmp_path / ".x.json.new").mkdir()
    with pytest.raises(OutputUnavailable, match=r"x\.json"):
        state.save(2, {"b": 2})
    assert state.position == 1 and state.notes == {"a": 1} and OutputState(path, JOURNAL, 0, 0).position == 1


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"[]",
        *(
            json.dumps({"form": 1, "journal": JOURNAL, "position": 1, "keep_from": 0, "notes": {}, **wrong}).encode()
            for wrong in ({"journal": "f" * 16}, {"form": 0}, {"keep_from": 2}, {"keep_from": True})
        ),
        *(
            json.dumps({"form": 1, "journal": JOURNAL, "position": position, "keep_from": 0, "notes": {}}).encode()
            for position in ("x", 1.5, 1 << 64)
        ),
        b'{"form": 1, "position": 1e999}',
        b"[" * 5000,
    ],
    ids=lambda content: str(content[:60]),
)
def test_one_that_cannot_be_read_is_set_aside_and_reported(tmp_path, caplog, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    state = OutputState(str(path), JOURNAL, 3, 10)
    assert state.position == 3 and "rows may be written twice" in caplog.text
    assert (tmp_path / "x.json.unreadable").read_bytes() == content and not path.exists()


def test_in_memory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = OutputState("", JOURNAL, 0, 0)
    state.save(5, {"a": 1})
    assert state.position == 5 and not os.listdir(tmp_path)
