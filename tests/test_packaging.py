"""The files that the packages install are ones that the daemons can use."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from colmet.collector import main as collector
from colmet.common.control import DIRECTORY
from colmet.node import main as node
from colmet.node.privileges import CORE, NUMBERS

PACKAGING = Path(__file__).parents[1] / "packaging"
MAINS = {"node": node.main, "collector": collector.main}


def check(daemon, path):
    return MAINS[daemon](["--config", str(path), "--check-config"])


@pytest.mark.parametrize("daemon", MAINS)
def test_the_settings_can_be_used_as_they_are_and_with_all_that_they_propose(daemon, tmp_path, capsys):
    text = (PACKAGING / f"etc/{daemon}.toml").read_text()
    assert check(daemon, PACKAGING / f"etc/{daemon}.toml") == 0
    proposed = tmp_path / "proposed.toml"
    proposed.write_text(re.sub(r"^#(?=[a-zA-Z-]+ = )", "", text, flags=re.M))
    assert proposed.read_text().count("\n") == text.count("\n") and proposed.read_text() != text
    assert check(daemon, proposed) == 0


def unit(daemon):
    return (PACKAGING / f"systemd/colmet-{daemon}.service").read_text()


def test_the_units_start_the_commands_that_setup_installs():
    setup = (PACKAGING.parent / "setup.py").read_text()
    for daemon in MAINS:
        # no option beside it: that would count before the same one in the file
        assert f"ExecStart=/usr/bin/colmet-{daemon} --config /etc/colmet/{daemon}.toml $OPTIONS\n" in unit(daemon)
        assert f'"colmet-{daemon} = colmet.{daemon}.main:main"' in setup
        assert importlib.import_module(f"colmet.{daemon}.main").main


def test_the_nodes_unit_has_the_rights_that_backends_of_today_need_and_the_collectors_none():
    kept = set(re.findall(r"^CapabilityBoundingSet=(.+)$", unit("node"), re.M)[0].split())
    assert kept >= CORE
    # what these are for is a drop-in, as docs/operations.md says
    assert set(NUMBERS) - kept == {"CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN", "CAP_SYS_RAWIO"}
    assert re.findall(r"^CapabilityBoundingSet=(.*)$", unit("collector"), re.M) == [""]


def test_colmet_status_finds_the_socket_of_the_collectors_unit():
    runtime = re.findall(r"^RuntimeDirectory=(.+)$", unit("collector"), re.M)[0]
    link = re.findall(r"^L (\S+) - - - - (\S+)$", (PACKAGING / "tmpfiles/colmet-collector.conf").read_text(), re.M)[0]
    assert link[0] == f"{DIRECTORY}/collector.sock"
    assert Path(DIRECTORY, link[1]) == Path("/run", runtime, "collector.sock")


def test_each_package_has_the_directory_that_its_settings_and_secrets_go_to():
    """So that what is said of setting it up works where it is the only one, too."""
    for package in ("node", "collector", "facility"):
        lists = (PACKAGING / f"debian/colmet-{package}.{kind}" for kind in ("install", "dirs"))
        text = "".join(path.read_text() for path in lists if path.exists())
        assert re.search(r"(^| )etc/colmet$", text, re.M), package
