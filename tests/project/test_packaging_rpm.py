"""The RPM packages, the images and the Ansible role have what the Debian packages have."""

from __future__ import annotations

import fnmatch
import re
import runpy
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.packages import modules_of
from tests.support.project import scripts

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "packaging/rpm/colmet.spec").read_text()
ROLE = ROOT / "packaging/ansible/roles/colmet"
REQUIREMENTS = runpy.run_path(str(ROOT / "packaging/rpm/environment.py"))["REQUIREMENTS"]


def files_of(package):
    """The lines of %files of a package."""
    return re.search(rf"^%files {package}\b.*\n((?:[^\n]+\n)*)", SPEC, re.M)[1].split("\n")


def names(requirements):
    return {Requirement(one).name.lower() for one in requirements}


def test_each_requirement_of_pip_is_in_a_package():
    wanted = set()
    for name in ("requirements", "requirements-web", "requirements-tools", "requirements-facility"):
        lines = (ROOT / f"{name}.txt").read_text().splitlines()
        wanted |= names(line.partition("  #")[0] for line in lines if line and not line.startswith("#"))
    assert wanted | {"nvidia-ml-py"} == names(one for package in REQUIREMENTS.values() for one in package)


@pytest.mark.parametrize("package", ["node", "collector", "facility"])
def test_a_package_has_the_modules_that_the_debian_package_depends_on(package):
    debian = {"pyzmq" if name == "zmq" else name for name in modules_of(f"colmet-{package}", "Recommends")}
    assert debian <= names((*REQUIREMENTS["common"], *REQUIREMENTS[package]))


def test_each_command_unit_and_file_of_settings_is_in_a_package():
    lines = [line for package in ("common", "node", "collector", "facility") for line in files_of(package)]
    patterns = [line.rpartition("}/")[2] for line in lines]
    assert all(f"%{{_bindir}}/{name}" in lines for name in scripts())
    for folder in ("systemd", "default"):
        for path in (ROOT / "packaging" / folder).iterdir():
            name = f"default/{path.name}" if folder == "default" else path.name
            assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), path
    for path in (ROOT / "packaging/etc").iterdir():
        assert f"%config(noreplace) %{{_sysconfdir}}/colmet/{path.name}" in lines
    assert not [line for line in lines if "_sysconfdir}/default" in line and not line.startswith("%config(noreplace)")]


def test_removal_lets_go_of_the_ports_before_the_collector_stops():
    script = re.search(r"^%preun collector\n(.*?)^fi$", SPEC, re.M | re.S)[1]
    assert script.index("stop $sockets $timers") < script.index("stop colmet-collector.service")


def test_the_container_of_the_node_has_no_more_rights_than_its_unit():
    page = (ROOT / "docs/containers.md").read_text()
    given = set(re.search(r"--cap-drop all --cap-add (\S+)", page)[1].split(","))
    unit = (ROOT / "packaging/systemd/colmet-node.service").read_text()
    bounds = re.search(r"^CapabilityBoundingSet=(.+)$", unit, re.M)[1].split()
    assert {f"CAP_{name}" for name in given} == set(bounds)


def test_each_variable_of_the_role_is_documented_with_its_tasks_well_formed():
    page = (ROOT / "docs/ansible.md").read_text()
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert set(re.findall(r"^\| `(colmet_\w+)`", page, re.M)) == set(defaults)
    handlers = {one["name"] for one in yaml.safe_load((ROLE / "handlers/main.yml").read_text())}
    assert handlers == {"restart colmet-collector", "restart colmet-node", "restart colmet-web"}
    for path in sorted((ROLE / "tasks").iterdir()):
        for task in yaml.safe_load(path.read_text()):
            assert task["name"] and len([key for key in task if key.startswith("ansible.builtin.")]) == 1, (path, task)
