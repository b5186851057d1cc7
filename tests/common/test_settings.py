"""Options that change while a daemon runs: by SIGHUP and its file, or because somebody asks for it."""

from __future__ import annotations

import logging

import pytest

from colmet.common.config import configuration
from colmet.common.config.cli import Parser, positive_seconds
from colmet.common.config.configuration import Configuration, Settings, at_once
from colmet.common.errors import ConfigError


def build():
    parser = Parser(prog="colmet-test")
    configuration.add_options(parser)
    parser.add_argument("-v", "--verbose", action="count", default=0)
    parser.add_argument("--sample-period", type=positive_seconds, default=5.0)
    parser.add_argument("--nice", type=int, default=5)
    parser.add_argument("--state-dir", default="/run")
    parser.add_argument("--wire", default="v1")
    return parser


class Daemon:
    """What accepts new values: any period, and a niceness of at most 9."""

    def __init__(self, path, *arguments):
        read = Configuration(build, ["--config", str(path), *arguments])
        self.options = read.read()
        self.settings = Settings(self.options, read)
        self.taken = []
        self.settings.add({"sample_period": at_once(lambda value: self.take("period", value)), "nice": self.prepare})

    def take(self, *what):
        self.taken.append(what)

    def prepare(self, value):
        if value > 9:
            raise ConfigError(f"--nice: {value} is more than the kernel gives")
        return lambda: self.take("nice", value)


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "node.toml"
    made.write_text("sample-period = 2\nnice = 3\n")
    return made


def test_a_file_that_is_read_again_changes_what_can_change(path, caplog):
    caplog.set_level(logging.INFO)
    daemon = Daemon(path)
    daemon.settings.reload()
    assert daemon.taken == [] and "nothing has changed" in caplog.messages[-1]
    path.write_text("sample-period = 7\nnice = 3\n")
    daemon.settings.reload()
    assert daemon.taken == [("period", 7.0)] and daemon.options.sample_period == 7.0
    assert caplog.messages[-1] == f"configuration read again {path}: sample-period: 2.0 -> 7.0"
    path.write_text("")
    daemon.settings.reload()  # back to the defaults
    assert daemon.taken[1:] == [("period", 5.0), ("nice", 5)]
    assert daemon.settings.counters() == {"reloads": 3, "failures": 0}


def test_what_needs_a_restart_is_named_each_time_until_it_is_so(path, caplog):
    daemon = Daemon(path)
    path.write_text("sample-period = 2\nnice = 4\nwire = 'colmet06'\nstate-dir = '/x'\n")
    for n in (1, 2):
        daemon.settings.reload()
        assert caplog.messages == ["configuration needs a restart: state-dir, wire"] * n
    assert daemon.taken == [("nice", 4)] and daemon.options.wire == "v1"
    path.write_text("sample-period = 2\nnice = 4\n")
    daemon.settings.reload()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    "text", ["sample-period = 3\nnice = 'x'", "sample-period = 3\nnice = 10", "sample-period = ", None]
)
def test_a_file_that_cannot_be_used_changes_nothing(path, caplog, text):
    daemon = Daemon(path)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    daemon.settings.reload()
    assert daemon.taken == [] and (daemon.options.sample_period, daemon.options.nice) == (2.0, 3)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "configuration not changed failures=1: " in record.getMessage()
    assert daemon.settings.counters() == {"reloads": 1, "failures": 1}


def test_all_values_are_taken_or_none(path):
    daemon = Daemon(path)
    with pytest.raises(ConfigError, match="more than the kernel gives"):
        daemon.settings.change({"sample_period": 1.0, "nice": 12})
    with pytest.raises(ConfigError, match=r"^wire cannot be changed while this runs"):
        daemon.settings.change({"sample_period": 1.0, "wire": "colmet06"})
    assert daemon.taken == [] and daemon.settings.value("sample_period") == 2.0
    assert daemon.settings.change({"sample_period": 1.0, "nice": 3}) == {"sample_period": (2.0, 1.0)}
    assert daemon.taken == [("period", 1.0)] and daemon.settings.value("sample_period") == 1.0
