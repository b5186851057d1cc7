"""The Debian packages in roots of several releases: dependencies, a job, removal without a trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beds.machine import tell
from tests.beds.packages.installed import ROOT, Running, assert_no_trace, files_of, measured_in_a_root, page
from tests.support.place import cannot_run, machine_refusal

DEBIAN = ("bookworm", "trixie", "testing")
UBUNTU = ("jammy", "noble")
VERSIONS = (
    "python3 -c 'import platform, numpy, tables, zmq; "
    'print("Python", platform.python_version(), "numpy", numpy.__version__, "PyTables", tables.__version__, "pyzmq", '
    "zmq.__version__)'"
)
OWN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
OWN |= {name: value for name, value in os.environ.items() if re.match(r"PIP_|https?_proxy|no_proxy", name)}
SITE = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
# the same bytes from each source, wherever it is and whoever builds it
BUILD = "SOURCE_DATE_EPOCH=1700000000 make -s deb wheel >/dev/null && cd dist && sha256sum *.deb *.whl"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if missing := machine_refusal():
        cannot_run(missing)
    if given := os.environ.get("COLMET_DEBS"):  # built before
        return sorted(Path(given).glob("*.deb"))
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "scripts/build-debs.sh", directory], capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(directory.glob("*.deb"))


def must(*command, **options):
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, **streams, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def mirror():
    said = must("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian")
    return next(uri for uri in said.split() if "security" not in uri)


def keys_of_ubuntu(folder):
    """The keys of Ubuntu's archive, as Debian has them."""
    root = folder / "keys"
    options = ("--variant=extract", "--include=ubuntu-keyring", '--aptopt=Acquire::Check-Valid-Until "false"')
    must("mmdebstrap", *options, "trixie", str(root), f"deb {mirror()} trixie main", timeout=900)
    return root / "usr/share/keyrings/ubuntu-archive-keyring.gpg"


class Root:
    """A root of a release, in which commands run with the network of this machine."""

    def __init__(self, path, release, *packages):
        self.path = path
        must(ROOT / "scripts/need.sh", "mmdebstrap", "distro-info-data")
        options = (
            "--variant=apt",
            "--dpkgopt=force-unsafe-io",
            f"--include={','.join(['ca-certificates', 'passwd', *packages])}",
        )
        # a mirror may be older than the days for which the list of "testing" is valid
        options += ('--aptopt=Acquire::Check-Valid-Until "false"',)
        if release in UBUNTU:  # from the mirror that mmdebstrap knows
            options += ("--components=main,universe", f"--keyring={keys_of_ubuntu(path.parent)}")
            sources = []
        else:
            sources = [f"deb {mirror()} {release} main"]
        must("mmdebstrap", *options, release, str(path), *sources, timeout=900)
        for file in filter(os.path.exists, SITE):
            shutil.copy(file, f"{path}{file}")
        (path / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (path / "usr/sbin/policy-rc.d").chmod(0o755)

    def run(self, script):
        mounts = "".join([f"mount --rbind /{name} '{self.path}/{name}'; " for name in ("proc", "sys", "dev")])
        command = f"set -e; {mounts}exec chroot '{self.path}' sh -ec \"$1\""
        return must(
            "unshare", "--mount", "--propagation=private", "sh", "-c", command, "sh", script, env=OWN, timeout=900
        )


@pytest.mark.parametrize("release", DEBIAN + UBUNTU)
def test_the_packages_measure_a_job_with_the_modules_of_a_release_and_leave_no_trace(release, packages, tmp_path):
    root = Root(tmp_path / "root", release)
    (root.path / "dist").mkdir()
    for package in packages:
        shutil.copy(package, root.path / "dist")
    said = root.run("apt-get update -q && apt-get install -s --no-install-recommends ./dist/*.deb")
    required = [name for name in re.findall(r"^Inst (\S+)", said, re.M) if not name.startswith("colmet-")]
    root.run(f"apt-get install -y --no-install-recommends {' '.join(required)}")
    before = files_of(root.path)

    root.run("apt-get install -y --no-install-recommends ./dist/*.deb")
    root.run("for name in colmet colmet-node colmet-collector colmet-facility; do $name --version; done")
    tell(f"Debian packages in {release} with {root.run(VERSIONS).strip()}")
    for daemon in ("node", "collector"):
        root.run(f"colmet-{daemon} --config /etc/colmet/{daemon}.toml --check-config")
    running = Running(tmp_path / "log")
    (root.path / "var/lib/colmet").mkdir(exist_ok=True)
    root.run("chown colmet: /var/lib/colmet")
    try:
        measured_in_a_root(running, root.path, f"Debian packages in {release}")
    finally:
        running.stop()

    root.run(page("install.md")["remove"])
    root.run(page("rpm.md")["remove-data"])
    assert_no_trace(before, root.path, f"Debian packages in {release}")


def test_debian_11_has_no_module_for_the_settings(packages, tmp_path):
    """There pip is the way: docs/install.md."""
    root = Root(tmp_path / "root", "bullseye")
    (root.path / "dist").mkdir()
    for package in packages:
        shutil.copy(package, root.path / "dist")
    look = "apt-get install -s --no-install-recommends ./dist/colmet-common_*.deb 2>&1 || true"
    said = root.run(f"apt-get update -q; {look}")
    assert re.search(r"colmet-common : Depends: python3 .*\n +python3-tomli but it is not installable\n", said), said


def copy_source(target):
    script = f"set -euo pipefail; source scripts/building.sh; copy_source '{target}'"
    must("bash", "-c", script, cwd=ROOT)


def as_builder(script):
    return f"runuser -u builder -- env -u HOME sh -ec 'umask 077; cd \"/home/builder/a clone\"; {script}'"


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_a_root_with_nothing_but_make_builds_packages_and_wheel(release, tmp_path):
    """Of an archive and of a clone; as root, and as a user whose clone it is."""
    if missing := machine_refusal():
        cannot_run(missing)
    root = Root(tmp_path / "root", release, "make")
    root.run("useradd --create-home builder")
    clone = root.path / "home/builder/a clone"
    must("git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone))
    copy_source(clone)
    root.run("chmod -R go= '/home/builder/a clone' && chown -R builder: '/home/builder/a clone'")
    copy_source(root.path / "root/colmet")

    for target in ("deb", "wheel"):
        said = root.run(as_builder(f"! make -s {target} 2>&1")).splitlines()
        assert re.match(r"setup: missing system package\(s\): .*\. As root, this installs them:$", said[0])
        assert said[1].startswith("    apt-get update && apt-get install -y ") and said[2].startswith("make: ***")
        assert len(said) == 3 and not (clone / "dist").exists()

    sums = root.run(f"cd /root/colmet && {BUILD}")
    assert sums.count(".deb") == 4 and sums.count(".whl") == 1
    root.run("apt-get install -y --no-install-recommends git")
    by_root = root.run(f"cd '/home/builder/a clone' && {BUILD}")
    assert root.run("find '/home/builder/a clone' -user root ! -path '*/dist*'") == ""
    shutil.rmtree(clone / "dist")
    assert root.run(as_builder(BUILD)) == by_root
    assert sums.endswith(by_root)

    root.run("cd /root/colmet && apt-get install -y --no-install-recommends ./dist/*.deb")
    root.run("for name in colmet colmet-node colmet-collector colmet-facility; do $name --version; done")
    assert root.run("ls /usr/share/doc/colmet-common/docs/tools/notices.md")
    root.run("python3 -m venv /opt/colmet && /opt/colmet/bin/pip install -q /root/colmet/dist/colmet-*.whl")
    root.run("/opt/colmet/bin/colmet --version && /opt/colmet/bin/colmet-node --once")
    tell(f"built in {release} with nothing but make:\n{sums}")
