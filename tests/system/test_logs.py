"""Logging: with times for people and files, with priorities and without times for the journal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys

import pytest

from colmet.common.config import cli
from colmet.common.config.configuration import Configuration, Settings
from colmet.common.daemon import logs, startup


class Stderr:
    """Standard error is a file, that of the journal or none, and logging is not set up yet."""

    def __init__(self, path, monkeypatch, is_journal):
        self.path = path
        self._file = open(path, "w")  # noqa: SIM115 - closed by the fixture
        status = os.stat(path)
        if is_journal:
            monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        else:
            monkeypatch.delenv("JOURNAL_STREAM", raising=False)
        monkeypatch.setattr(logs, "STDERR", self._file.fileno())
        monkeypatch.setattr(sys, "stderr", self._file)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)

    def close(self):
        self._file.close()

    def lines(self):
        self._file.flush()
        return self.path.read_text().splitlines()


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Have the rest of the test write to such a file."""
    with contextlib.ExitStack() as stack:
        yield lambda is_journal=True: stack.enter_context(
            contextlib.closing(Stderr(tmp_path / "stderr", monkeypatch, is_journal))
        )


def say():
    log = logging.getLogger("colmet.x")
    log.info("fine")
    log.warning("odd: %s", "two\nlines")
    log.error("bad")
    return log


def test_the_journal_has_levels_and_no_second_time(begin):
    journal = begin()
    startup.set_up_logging(1)
    say()
    assert journal.lines() == [
        "<6>INFO colmet.x: fine",
        "<4>WARNING colmet.x: odd: two\\nlines",
        "<3>ERROR colmet.x: bad",
    ]


def test_each_line_of_a_traceback_has_the_level(begin):
    journal = begin()
    startup.set_up_logging(0)
    try:
        raise ValueError("oops")
    except ValueError:
        say().exception("defect")
    lines = journal.lines()
    assert lines[-1] == "<3>ValueError: oops" and all(line.startswith(("<3>", "<4>")) for line in lines)


@pytest.mark.parametrize("stream", [None, "", "1:2", "garbage"])
def test_elsewhere_each_line_has_its_time(begin, monkeypatch, stream):
    stderr = begin(is_journal=False)
    if stream is not None:
        monkeypatch.setenv("JOURNAL_STREAM", stream)
    startup.set_up_logging(0)
    say()
    first, *_ = stderr.lines()
    assert first[:4].isdigit() and first.partition(" WARNING ")[2] == "colmet.x: odd: two\\nlines"


@pytest.mark.parametrize("is_journal", [True, False])
def test_no_name_makes_a_line_of_its_own_or_reaches_a_terminal(begin, is_journal):
    stderr = begin(is_journal)
    startup.set_up_logging(0)
    hostile = "n1\r\n<0>EMERG \x1b]0;owned\x07 \x9b2J \u202eevil \u2028 \udcff é"
    log = logging.getLogger("colmet.x")
    log.warning("sender=%s", hostile)
    try:
        try:
            raise KeyError
        except KeyError as err:
            raise ValueError(hostile) from err
    except ValueError:
        log.exception("defect sender=%s", hostile)
    escaped = "n1\\r\\n<0>EMERG \\x1b]0;owned\\x07 \\x9b2J \\u202eevil \\u2028 \\udcff é"
    text = stderr.path.read_text()
    assert text.count(f"sender={escaped}\n") == 2 and f"ValueError: {escaped}\n" in text
    assert text.count("Traceback (most recent call last)") == 2 and "The above exception was the direct cause" in text
    assert all(line.isprintable() and not line.startswith("<0>") for line in text.split("\n"))


def test_a_wrong_command_line_is_an_error_of_the_journal(begin):
    journal = begin()
    with pytest.raises(SystemExit):
        cli.Parser(prog="x").parse_args(["--no"])
    assert journal.lines()[0].startswith("<3>x: error: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("verbose = 0\n", "nothing has changed"),
        ("verbose = 0\nsample-period = 9\n", "nothing takes effect before a restart"),
        ("verbose = 2\nsample-period = 9\n", "verbose: 0 -> 2"),
    ],
)
def test_a_reload_says_what_takes_effect(tmp_path, caplog, text, said):
    def build():
        parser = cli.Parser(prog="x")
        parser.add_argument("--config")
        parser.add_argument("--verbose", "-v", action="count", default=0)
        parser.add_argument("--sample-period", type=float, default=5.0)
        return parser

    path = tmp_path / "x.toml"
    path.write_text("verbose = 0\n")
    configuration = Configuration(build, ["--config", str(path)])
    settings = Settings(configuration.read(), configuration)
    caplog.set_level(logging.INFO)
    monitored = logging.getLogger().level
    path.write_text(text)
    settings.reload()
    logging.getLogger().setLevel(monitored)
    assert f"configuration read again {path}: {said}" in caplog.text
    assert ("needs a restart: sample-period" in caplog.text) == ("sample-period" in text)
