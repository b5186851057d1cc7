"""The playbook of docs/recipes.md with the role, and docs/ansible.md: check, run, again, removal without a trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beds.machine import Machine, tell
from tests.beds.packages.installed import ROOT, assert_no_trace, differences, files_of, page
from tests.support.place import cannot_run, machine_refusal

RECIPES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", (ROOT / "docs/recipes.md").read_text(), re.M | re.S))
RUN, REMOVE = RECIPES["ansible"], page("ansible.md")["remove"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if given := os.environ.get("COLMET_DEBS"):  # built before
        return Path(given)
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "scripts/build-debs.sh", directory], capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="module")
def machine(tmp_path_factory, packages):
    """The collector's host and a node in one; the packages' dependencies come from the mirror."""
    if missing := machine_refusal():
        cannot_run(missing)
    made = Machine(tmp_path_factory.mktemp("ansible"), "ca-certificates", "python3", "ansible-core", "procps")
    try:
        tell("\nbed of Ansible: making a Debian")
        made.make()
        made.boot()
        source = made.root / "root"
        shutil.copytree(ROOT / "packaging/ansible", source / "packaging/ansible")
        shutil.copytree(packages, source / "dist", ignore=lambda _, names: [n for n in names if not n.endswith(".deb")])
        for name in ("hosts.ini", "colmet.yml"):
            (source / name).write_text(RECIPES[name])
        inventory = "[collector]\nhead\n[nodes]\nnode-001\n[all:vars]\nansible_connection=local\n"
        (source / "hosts.ini").write_text(inventory)
        made.run("echo 127.0.0.1 head node-001 >> /etc/hosts; hostname head; apt-get update", fetch=True)
        # what the packages require and recommend stays with them gone: not theirs
        needed = "apt-get install -y ./dist/*.deb && apt-get purge -y '^colmet-.*'"
        made.run(needed, fetch=True)
        made.run("rm -rf /etc/colmet /var/lib/colmet* /var/spool/colmet /run/colmet")
        made.run("for user in colmet-node colmet-web colmet-notices colmet; do userdel $user 2>/dev/null || true; done")
        yield made
    finally:
        made.close()


def recap(said):
    """What Ansible counted, by host."""
    lines = re.findall(r"^(\S+) +: (.*)$", said, re.M)
    return {host: {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in lines}


def test_the_role_sets_up_both_daemons_again_without_a_change_and_removes_them(machine):
    before = files_of(machine.root)
    said = machine.run(RUN.replace("colmet.yml", "--check colmet.yml"), fetch=True, timeout=600)
    assert all(counts["failed"] == 0 for counts in recap(said).values()), said
    assert differences(before, files_of(machine.root)) == []

    said = machine.run(RUN, fetch=True, timeout=600)
    assert all(counts["failed"] == 0 < counts["changed"] for counts in recap(said).values()), said
    machine.run("hostname node-001; systemctl restart colmet-node")  # the other one
    for daemon in ("collector", "node"):
        machine.wait_for(f"systemctl is-active --quiet colmet-{daemon} && colmet status {daemon}")
    machine.wait_for("colmet status collector | grep -Eq '^node-001 +[0-9.]+ s ago'")
    assert 'hdf5-keep = "90d"' in machine.run("cat /etc/colmet/collector.toml")

    for arguments in ("colmet.yml", "--check colmet.yml"):
        said = machine.run(RUN.replace("colmet.yml", arguments), fetch=True, timeout=600)
        assert [counts["changed"] for counts in recap(said).values()] == [0, 0], said

    page = """ -e '{"colmet_web_options": {"open": true}}'"""
    said = machine.run(RUN.strip() + page, fetch=True, timeout=600)
    assert [counts["failed"] for counts in recap(said).values()] == [0, 0], said
    machine.wait_for("python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8080/api/v1/nodes\")'")

    machine.run(REMOVE, fetch=True, timeout=600)
    assert "not-found" in machine.run("systemctl show -P LoadState colmet-node colmet-collector colmet-web")
    assert_no_trace(before, machine.root, "Ansible role")
