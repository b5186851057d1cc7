"""The files that the packages install are ones that the daemons can use."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from colmet.collector import main as collector
from colmet.common.config.configuration import Configuration
from colmet.common.daemon import startup
from colmet.common.daemon.control import default_paths
from colmet.common.host.capabilities import CORE, NUMBERS
from colmet.common.transport import link_uri
from colmet.node import main as node
from colmet.notices.options import STATE_DIRECTORY
from tests.support.place import require_programs, skip_refused
from tests.support.project import extras, metadata, scripts

PACKAGING = Path(__file__).parents[2] / "packaging"
MAINS = {"node": node, "collector": collector}


@pytest.mark.parametrize("daemon", MAINS)
def test_the_settings_can_be_used_as_they_are_and_with_all_that_they_propose(daemon, tmp_path):
    text = (PACKAGING / f"etc/{daemon}.toml").read_text()
    main = MAINS[daemon]
    here = ["--zeromq-curve-secret", "", *(["--hdf5-filepath", f"{tmp_path}/x"] if daemon == "collector" else [])]
    # As a package installs it: an unpacked archive may give the group more.
    installed = tmp_path / f"{daemon}.toml"
    installed.write_text(text)
    installed.chmod(0o644)
    assert main.main(["--config", str(installed), "--check-config", *here]) == 0
    proposed = tmp_path / "proposed.toml"
    proposed.write_text(re.sub(r"^#(?=[a-zA-Z-]+ = )", "", text, flags=re.M))
    assert proposed.read_text().count("\n") == text.count("\n") and proposed.read_text() != text
    # it names files that this machine may lack
    Configuration(lambda: main.build_parser(startup.load(main.NAMES)), ["--config", str(proposed)]).read()


def unit(daemon):
    return (PACKAGING / f"systemd/colmet-{daemon}.service").read_text()


def test_the_units_start_the_commands_that_setup_installs():
    for daemon in MAINS:
        # no option beside it: that would count before the same one in the file
        assert f"ExecStart=/usr/bin/colmet-{daemon} --config /etc/colmet/{daemon}.toml $OPTIONS\n" in unit(daemon)
        assert scripts()[f"colmet-{daemon}"] == f"colmet.{daemon}.main:main"
        assert importlib.import_module(f"colmet.{daemon}.main").main


def test_the_nodes_unit_has_the_rights_that_backends_of_today_need_and_the_collectors_none():
    kept = set(re.findall(r"^CapabilityBoundingSet=(.+)$", unit("node"), re.M)[0].split())
    assert kept >= CORE
    # what these are for is a drop-in, as docs/install.md says
    assert set(NUMBERS) - kept == {"CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN", "CAP_SYS_RAWIO"}
    assert set(re.findall(r"^AmbientCapabilities=(.+)$", unit("node"), re.M)[0].split()) == kept
    assert re.findall(r"^CapabilityBoundingSet=(.*)$", unit("collector"), re.M) == [""]


@pytest.mark.parametrize("daemon", MAINS)
def test_colmet_status_finds_the_socket_of_a_unit(daemon):
    runtime = re.findall(r"^RuntimeDirectory=(.+)$", unit(daemon), re.M)[0]
    assert f"/run/{runtime}/{daemon}.sock" in default_paths(daemon)


@pytest.mark.parametrize("daemon", MAINS)
def test_each_daemons_unit_has_a_user_that_the_package_makes(daemon):
    user = re.findall(r"^User=(.+)$", unit(daemon), re.M)[0]
    assert user in {
        line.split()[1]
        for path in (PACKAGING / "sysusers").iterdir()
        for line in path.read_text().splitlines()
        if line.startswith("u ")
    }


def test_no_other_program_runs_as_the_collectors_user():
    """Its keys and its data are that user's."""
    of = {path.name for path in (PACKAGING / "systemd").glob("*.service") if "\nUser=colmet\n" in path.read_text()}
    assert of <= {"colmet-collector.service", "colmet-thin.service"}


def test_devices_that_programs_of_the_agent_open_are_its_groups():
    rules = (PACKAGING / "udev/colmet-node.rules").read_text()
    groups = re.findall(r'^SUBSYSTEM=="(\w+)", .*GROUP="([\w-]+)", MODE="0660"$', rules, re.M)
    assert dict(groups) == dict.fromkeys(("ipmi",), re.findall(r"^Group=(.+)$", unit("node"), re.M)[0])


@pytest.mark.parametrize("kept", ["", "new"])
def test_what_an_agent_of_root_kept_goes_on_under_the_units_user(tmp_path, kept):
    """Run as the unit says, in a tree of its own; the owner is the runtime directory's."""
    script = re.findall(r"^ExecStartPre=-\+/bin/sh -c '(.*?)'$", unit("node"), re.M | re.S)[0].replace("\\\n", "")
    run, spool = tmp_path / "run/colmet", tmp_path / "var/spool/colmet"
    (run / "node").mkdir(parents=True)
    (run / "taskstats.state").write_text("old")
    if kept:
        (run / "node/taskstats.state").write_text(kept)
    script = re.sub(r"(?<![\w/])/(run|var)/", rf"{tmp_path}/\1/", script)
    for _ in range(2):  # each start does it
        (tmp_path / "var/spool").mkdir(parents=True, exist_ok=True)
        subprocess.run(["sh", "-ec", script], check=True, timeout=60)
    assert (run / "node/taskstats.state").read_text() == (kept or "old")
    assert spool.stat().st_mode & 0o777 == 0o700


def test_the_owner_of_what_was_kept_becomes_the_units_user(tmp_path, other_owner):
    script = re.findall(r"exec (chown .*?)'$", unit("node"), re.M)[0]
    (tmp_path / "node").mkdir()
    (tmp_path / "spool").mkdir()
    for name in ("node/taskstats.state", "spool/1.segment", "outside"):
        (tmp_path / name).write_text("")
    (tmp_path / "spool/link").symlink_to(tmp_path / "outside")
    os.chown(tmp_path / "node", 65534, 65534)
    subprocess.run(["sh", "-ec", script.replace("/var/spool/colmet", "spool")], cwd=tmp_path, check=True, timeout=60)
    owners = {str(path.relative_to(tmp_path)): path.lstat().st_uid for path in tmp_path.rglob("*")}
    assert owners.pop("outside") == 0 and set(owners.values()) == {65534}


def test_each_package_has_the_directory_that_its_settings_and_secrets_go_to():
    """So that what is said of setting it up works where it is the only one, too."""
    for package in ("node", "collector", "facility"):
        lists = (PACKAGING / f"debian/colmet-{package}.{kind}" for kind in ("install", "dirs"))
        text = "".join(path.read_text() for path in lists if path.exists())
        assert re.search(r"(^| )etc/colmet$", text, re.M), package


@pytest.mark.parametrize(
    ("name", "most"), [("node", 2.6), ("collector", 1.2), ("web", 1.2), ("notices", 1.2), ("facility", 1.9)]
)
def test_what_systemd_says_of_the_exposure_of_a_unit(name, most):
    require_programs("systemd-analyze")
    path = PACKAGING / f"systemd/colmet-{name}.service"
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"Overall exposure level for \S+ ([0-9.]+) ", done.stdout)
    if "unrecognized option" in done.stderr:
        # Nothing that could be installed: systemd of Debian 11 reads no file.
        pytest.skip("systemd-analyze judges no file")
    if found is None:
        skip_refused(f"systemd-analyze does not work: {done.stderr[:80]}")
    assert found is not None and float(found[1]) <= most


@pytest.mark.parametrize("name", ["node", "collector", "web", "notices", "facility"])
def test_memory_and_tasks_of_each_unit_are_bounded(name):
    assert re.search(r"^MemoryMax=\S+$", unit(name), re.M) and re.search(r"^TasksMax=\d+$", unit(name), re.M)


def test_notices_read_by_the_collectors_group_and_are_started_by_a_timer():
    text = unit("notices")
    user = re.findall(r"^User=(.+)$", text, re.M)[0]
    users = (PACKAGING / "sysusers/colmet.conf").read_text()
    assert f"u {user} " in users and f"m {user} colmet\n" in users and "\nSupplementaryGroups=colmet\n" in text
    state = re.findall(r"^StateDirectory=(.+)$", text, re.M)[0]
    assert f"{STATE_DIRECTORY}/notices.sqlite".startswith(f"/var/lib/{state}/") and "[Install]" not in text
    assert "\nOnCalendar=" in (PACKAGING / "systemd/colmet-notices.timer").read_text()


def test_no_package_enables_the_timers_and_an_update_stops_none_that_is_enabled():
    """Without --restart-after-upgrade, debhelper stops them before an update and starts none after it."""
    rules = (PACKAGING / "debian/rules").read_text()
    (line,) = re.findall(r"dh_installsystemd --package=colmet-collector (.*\.timer.*)", rules)
    assert line == "--no-enable --no-start --restart-after-upgrade colmet-notices.timer"


def test_what_the_collector_writes_is_for_its_group_at_most():
    assert "\nUMask=0027\n" in unit("collector") and "\nStateDirectoryMode=0750\n" in unit("collector")


def test_the_ports_that_are_held_are_those_that_the_collector_binds_by_default():
    text = (PACKAGING / "systemd/colmet-collector.socket").read_text()
    held = re.findall(r"^ListenStream=(.+)$", text, re.M)
    default = collector.build_parser([]).get_default("zeromq_bind_uri")
    assert [f"tcp://{one}" for one in held] == [default, link_uri(default)]
    assert not re.search(r"^zeromq-bind-uri", (PACKAGING / "etc/collector.toml").read_text(), re.M)


def test_the_packaged_node_names_no_collector():
    assert '\nzeromq-uri = ""\n' in (PACKAGING / "etc/node.toml").read_text()


@pytest.mark.parametrize(
    ("before", "changed", "was_enabled", "done"),
    [
        ("", "", True, "keygen enable"),
        ("0.9", "", True, "keygen enable"),
        ("0.9", "", False, "keygen"),
        ("0.9", "etc/colmet/collector.toml", True, ""),
        ("0.9", "etc/default/colmet-collector", True, ""),
        ("0.9", "etc/systemd/system/colmet-collector.service", True, ""),
        ("0.9", "etc/systemd/system/colmet-collector.service.d/override.conf", True, ""),
    ],
)
def test_a_collector_that_was_configured_gets_no_keys_by_an_upgrade(tmp_path, before, changed, was_enabled, done):
    """And a socket unit that was turned off stays so."""
    conffiles = [tmp_path / "etc/colmet/collector.toml", tmp_path / "etc/default/colmet-collector"]
    for path in conffiles:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    sums = "".join(f" {path} {hashlib.md5(path.read_bytes()).hexdigest()}\n" for path in conffiles)
    if changed:
        (tmp_path / changed).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / changed).write_text("# ours\n")
    (tmp_path / "sums").write_text(sums)
    commands = {
        "dpkg-query": f"cat {tmp_path}/sums",
        "systemd-sysusers": "true",
        "systemctl": "exit 0",
        "deb-systemd-invoke": "true",
        "colmet": f"echo keygen >>{tmp_path}/done",
        "deb-systemd-helper": f'[ "$1" != enable ] || echo enable >>{tmp_path}/done; '
        f'[ "$2" != was-enabled ] || {"true" if was_enabled else "false"}',
    }
    (tmp_path / "bin").mkdir()
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = (PACKAGING / "debian/colmet-collector.postinst").read_text()
    script = re.sub(r"(?<![\w/])/(etc|run)/", rf"{tmp_path}/\1/", script)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", script, "postinst", "configure", before], env=environment, check=True, timeout=60)
    found = (tmp_path / "done").read_text().split() if (tmp_path / "done").exists() else []
    assert " ".join(found) == done


def test_removing_the_collector_lets_go_of_the_ports_before_it_stops(tmp_path):
    """Else a node that connects meanwhile has it started again."""
    script = (PACKAGING / "debian/colmet-collector.prerm").read_text().replace("/run/systemd/system", str(tmp_path))
    invoke = tmp_path / "deb-systemd-invoke"
    invoke.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/done\n')
    invoke.chmod(0o755)
    script = script.replace("#DEBHELPER#", "deb-systemd-invoke stop colmet-collector.service")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", script, "prerm", "remove"], env=environment, check=True, timeout=60)
    stopped = (tmp_path / "done").read_text().replace("stop ", "").split()
    first = ["colmet-collector.socket", "colmet-notices.timer", "colmet-web.service"]
    assert stopped == [*first, "colmet-collector.service"]


def test_the_page_links_all_programs_of_a_pip_installation():
    text = (PACKAGING.parent / "docs/install.md").read_text()
    linked = re.search(r"^ln -sf (.+) /usr/local/bin/$", text, re.M)[1].replace("/opt/colmet/bin/", "").split()
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in linked) for name in scripts())
    assert "\nfind /usr/local/bin -lname '/opt/colmet/bin/*' -delete\n" in text
    assert extras() <= set(re.findall(r"^\| `(\w+)` \|", text, re.M))


@pytest.mark.parametrize("version", ["3.9", "3.11", "3.15"])
def test_what_pip_installs_is_pinned_with_hashes_for_each_python(version):
    """So that a requirement that is added, or raised, is not forgotten there: `make constraints`."""

    def applies(one):
        return one.marker is None or one.marker.evaluate(here)

    here = {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": "linux", "extra": ""}
    text = (PACKAGING / "constraints.txt").read_text()
    parts = re.findall(r"^(\S+==[^\\\n]+)\\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert "".join([f"{line}\\\n{hashes}" for line, hashes in parts]) == text.partition("\n")[2], (
        "a line without hashes"
    )
    found = [one for line, _ in parts if applies(one := Requirement(line))]
    pinned = {one.name: next(iter(one.specifier)).version for one in found}
    assert len(pinned) == len(found), "two versions of one module"
    for name in ("requirements", "requirements-web", "requirements-tools", "requirements-facility"):
        for line in (PACKAGING.parent / f"{name}.txt").read_text().splitlines():
            if line and not line.startswith("#") and applies(one := Requirement(line.partition("  #")[0])):
                assert one.specifier.contains(pinned[one.name.lower().replace("_", "-")]), line


def test_the_package_says_that_it_is_typed_and_has_the_version_of_the_source():
    setup = metadata()["tool"]["setuptools"]
    assert setup["package-data"]["colmet"] == ["py.typed"] and (PACKAGING.parent / "colmet/py.typed").exists()
    assert setup["dynamic"]["version"] == {"attr": "colmet.__version__"}
    assert {one["file"] for one in setup["dynamic"]["optional-dependencies"].values()} <= {
        path.name for path in PACKAGING.parent.glob("requirements-*.txt")
    }


def test_the_unit_of_the_node_lets_it_load_programs():
    """A filter that denies groups takes back what an earlier one allows."""
    lines = (PACKAGING / "systemd/colmet-node.service").read_text().splitlines()
    filters = [line.partition("=")[2] for line in lines if line.startswith("SystemCallFilter=")]
    denied = next(place for place, text in enumerate(filters) if text.startswith("~"))
    assert {"bpf", "capset"} <= {name for text in filters[denied + 1 :] for name in text.split()}


def test_debian_packages_keep_what_the_libraries_load():
    rules = (PACKAGING / "debian/rules").read_text()
    assert "! -name '*.so' ! -name '*.bpf.o' -delete" in rules
