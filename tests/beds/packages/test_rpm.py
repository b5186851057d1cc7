"""docs/rpm.md, to the letter, in a Debian of its own with dnf: units, a job, removal without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beds.machine import Machine, tell
from tests.beds.packages.installed import (
    ROOT,
    Running,
    assert_no_trace,
    differences,
    files_of,
    measured_in_a_root,
    page,
)
from tests.support.place import cannot_run, machine_refusal

BLOCKS = page("rpm.md")
# What a Debian has without RPM knowing of it.
STAND_IN = """Name: debian-itself
Version: 1
Release: 1
Summary: stands for packages of Debian
License: GPL-3.0-or-later
BuildArch: noarch
Provides: python(abi) = {abi}
Provides: glibc = {glibc}
Provides: systemd
Provides: /bin/sh
%description
%{{summary}}
%install
mkdir -p %{{buildroot}}/usr/share/licenses
%files
%dir /usr/share/licenses
"""
LABELS = {
    "/usr/lib64/colmet/bin/colmet-node": "bin_t",
    "/usr/lib64/colmet/lib/python3.9/site-packages/colmet/node/backends/lib_rapl/lib_rapl.so": "lib_t",
    "/usr/bin/colmet-node": "bin_t",
    "/etc/colmet/node.toml": "etc_t",
    "/var/lib/colmet/x.hdf5": "var_lib_t",
    "/var/spool/colmet/1.segment": "var_spool_t",
    "/usr/lib/systemd/system/colmet-node.service": "systemd_unit_t",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if given := os.environ.get("COLMET_RPMS"):  # built before
        return Path(given)
    directory = tmp_path_factory.mktemp("dist")
    assert BLOCKS["build"].strip() == "make rpm" and "scripts/build-rpms.sh dist" in (ROOT / "Makefile").read_text()
    command = [ROOT / "scripts/build-rpms.sh", directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if "missing system package" in done.stderr:
        cannot_run(done.stderr)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """One that has a package manager with RPM, which knows of no package."""
    if missing := machine_refusal():
        cannot_run(missing)
    made = Machine(tmp_path_factory.mktemp("rpm"), "python3", "ca-certificates", "procps", "dnf", "rpm")
    try:
        tell("\nbed of the RPMs: making a Debian")
        made.make()
        made.boot()
        made.run("mkdir -p /etc/dnf && printf '[main]\\ncachedir=/var/cache/dnf\\n' > /etc/dnf/dnf.conf")
        yield made
    finally:
        made.close()


def stand_in(machine, folder):
    """A package for what a Debian has, so that all other dependencies are checked."""
    abi = machine.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    glibc = machine.run("getconf GNU_LIBC_VERSION").split()[1]
    (folder / "debian-itself.spec").write_text(STAND_IN.format(abi=abi, glibc=glibc))
    command = ["rpmbuild", "-bb", "--define", f"_topdir {folder}", "--target", "noarch", "debian-itself.spec"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    shutil.copy(next(folder.glob("RPMS/noarch/*.rpm")), machine.root / "root")
    machine.run("rpm --force-debian -i debian-itself-*.rpm")


def test_the_packages_start_both_daemons_measure_a_job_and_leave_no_trace(machine, packages, tmp_path):
    (machine.root / "root/dist").mkdir()
    for path in packages.glob("*.rpm"):
        if ".src." not in path.name:
            shutil.copy(path, machine.root / "root/dist")
    stand_in(machine, tmp_path)
    before = files_of(machine.root)
    assert len(before) > 5000

    said = machine.run(BLOCKS["node"] + BLOCKS["collector"])
    said += machine.run("dnf install -y ./dist/colmet-facility-*.rpm ./dist/colmet-tools-*.rpm")
    assert "scriptlet" not in said.replace("Running scriptlet", ""), said
    assert machine.run("systemctl is-enabled colmet-node colmet-collector || true")
    machine.run(BLOCKS["start-collector"] + BLOCKS["start-node"] + BLOCKS["one-machine"])
    for daemon in ("node", "collector"):
        machine.wait_for(f"systemctl is-active --quiet colmet-{daemon} && colmet status {daemon}")
    machine.wait_for("ls /var/lib/colmet/*.hdf5")
    for command in ("report", "plot", "extract", "top"):
        machine.run(f"colmet {command} --help")
    machine.run("colmet-facility --help; python3 -c 'import sys; sys.exit(\"colmet\" in sys.modules)'")
    # configuration survives an update; the daemons run again
    machine.run("echo '# ours' >> /etc/colmet/node.toml")
    first = machine.run("systemctl show -P MainPID colmet-node")
    machine.run("rpm --force-debian -U --force ./dist/colmet-common-*.rpm ./dist/colmet-node-*.rpm")
    assert machine.run("tail -n 1 /etc/colmet/node.toml") == "# ours\n"
    machine.wait_for("systemctl is-active --quiet colmet-node")
    assert machine.run("systemctl show -P MainPID colmet-node") != first
    machine.run("systemctl stop colmet-collector.socket colmet-collector colmet-node")

    # with rights on this machine, which a container has not
    running = Running(tmp_path / "log")
    try:
        measured_in_a_root(running, machine.root, "RPM")
    finally:
        running.stop()

    machine.run("systemctl start colmet-collector.socket colmet-collector colmet-node")
    said = machine.run(BLOCKS["remove"])
    assert "scriptlet" not in said.replace("Running scriptlet", ""), said
    assert "not-found" in machine.run("systemctl show -P LoadState colmet-node colmet-collector colmet-facility")
    kept = differences(before, files_of(machine.root))
    assert not [name for name in kept if not name.startswith(("/etc/", "/var/lib/colmet", "/var/spool/colmet"))], kept
    machine.run(BLOCKS["remove-data"])
    assert_no_trace(before, machine.root, "RPM")


def test_labels_of_the_reference_policy(tmp_path):
    """docs/rpm.md names them; that of RHEL comes of the same source."""
    command = ["apt-get", "download", "-o", "APT::Sandbox::User=root", "selinux-policy-default"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    tools = [ROOT / "scripts/need.sh", "selinux-utils", "policycoreutils", "semodule-utils"]
    if done.returncode or subprocess.run(tools, check=False).returncode:
        cannot_run(f"needs Debian's selinux-policy-default and its tools: {done.stderr}")
    subprocess.run(["dpkg-deb", "-x", *tmp_path.glob("*.deb"), tmp_path], check=True)
    (tmp_path / "var/lib/selinux").mkdir(parents=True, exist_ok=True)
    modules = sorted(tmp_path.glob("usr/share/selinux/default/*.pp.bz2"))
    store = ["semodule", "-n", "-s", "default", "-p", tmp_path, "-i", *modules]
    subprocess.run(store, check=True, capture_output=True, timeout=600)
    contexts = tmp_path / "etc/selinux/default/contexts/files/file_contexts"
    asked = subprocess.run(["matchpathcon", "-n", "-f", contexts, *LABELS], capture_output=True, text=True, check=True)
    found = [label.split(":")[2] for label in asked.stdout.split()]
    assert dict(zip(LABELS, found)) == LABELS
