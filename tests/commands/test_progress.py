"""The line of progress."""

from __future__ import annotations

import io

import pytest

from colmet.commands import histories
from tests.support.made_up_history import MadeUp


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("kind", "after_s", "shown"), [(Terminal, 0, True), (Terminal, 100, False), (io.StringIO, 0, False)]
)
def test_progress_is_shown_on_a_terminal_alone_and_after_a_while(monkeypatch, kind, after_s, shown):
    stderr = kind()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(histories, "AFTER_S", after_s)
    history = MadeUp()
    with histories.shown_progress(history, "colmet report"):
        history.progress("read cgroup_default", 0.5)
        history.progress("read cgroup_default", 0.6)
    history.progress("compute", 1)
    if shown:
        line = stderr.getvalue()
        with histories.shown_progress(history, "colmet report"):
            history.progress("read " + "x" * 100, 0.5)
        assert len(stderr.getvalue()[len(line) :].partition("\x1b")[0]) == len("\r") + 79
        stderr.truncate(len(line))
    line = f"\rcolmet report: {'#' * 15}{'.' * 15}  50% read cgroup_default\x1b[K\r\x1b[K"
    assert stderr.getvalue() == (line if shown else "")
