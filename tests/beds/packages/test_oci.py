"""docs/containers.md, to the letter: both images run by podman, a job of the machine, removal without a trace."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.beds.packages.installed import ROOT, assert_stored, page, run_job
from tests.support.place import cannot_run, machine_refusal
from tests.support.waiting import free_port, wait_for

BLOCKS = page("containers.md")
# runc: crun refuses a machine with both versions of cgroups. The limits of a machine may be below podman's own.
CONFIGURATION = """[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
[engine]
runtime = "runc"
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    if missing := machine_refusal():
        cannot_run(missing)
    done = subprocess.run(
        [ROOT / "scripts/need.sh", "podman", "conmon", "runc"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        cannot_run(done.stderr)
    if given := os.environ.get("COLMET_IMAGES"):  # built before
        return Path(given)
    directory = tmp_path_factory.mktemp("dist")
    assert BLOCKS["build"].strip() == "make oci" and "scripts/build-oci.sh dist" in (ROOT / "Makefile").read_text()
    done = subprocess.run(
        [ROOT / "scripts/build-oci.sh", directory], capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


class Podman:
    """The commands of the page, with images, volumes and settings in a directory of the test."""

    def __init__(self, folder, images):
        self.settings = folder / "etc"
        self.uri = f"tcp://127.0.0.1:{free_port()}"
        self._images = images
        (folder / "containers.conf").write_text(CONFIGURATION)
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        (folder / "storage.conf").write_text(storage)
        files = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
        self._environment = {**os.environ, **{name: str(folder / path) for name, path in files.items()}}

    def run(self, script, check=True):
        for before, after in (
            (r"dist/", f"{self._images}/"),
            (r"(?<= )/etc/colmet(?=[ :\n])", str(self.settings)),
            (r"tcp://127.0.0.1:5556", self.uri),
        ):
            script = re.sub(before, after, script)
        done = subprocess.run(
            ["bash", "-ec", script], env=self._environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def podman(images, tmp_path):
    made = Podman(tmp_path, images)
    yield made
    made.run("podman rm -f -a; podman volume rm -f -a; podman rmi -f -a", check=False)
    made.run(f"umount '{tmp_path}/graph/overlay'", check=False)


def test_both_containers_measure_a_job_of_the_machine_and_leave_no_trace(podman):
    podman.run(BLOCKS["load"])
    podman.run(BLOCKS["settings"])
    # for the test alone: a port and a period of its own
    with (podman.settings / "collector.toml").open("a") as file:
        file.write(f'zeromq-bind-uri = "{podman.uri}"\n')
    with (podman.settings / "node.toml").open("a") as file:
        file.write("sample-period = 1\n")
    podman.run(BLOCKS["collector"] + BLOCKS["one-machine"] + BLOCKS["node"])
    wait_for(lambda: "collector is there" in podman.run("podman logs colmet-node"))
    podman.run(BLOCKS["check"])

    about = {}
    for name in ("collector", "node"):
        pid = podman.run(f"podman inspect -f '{{{{.State.Pid}}}}' colmet-{name}").strip()
        about[name] = Path(f"/proc/{pid}/status").read_text()
        assert not re.search(r"^Uid:\t0\t", about[name], re.M)
    # NET_ADMIN 12, SYS_PTRACE 19, DAC_READ_SEARCH 2
    held = {name: int(re.search(r"^CapEff:\t(\w+)$", text, re.M)[1], 16) for name, text in about.items()}
    assert held == {"collector": 0, "node": 1 << 12 | 1 << 19 | 1 << 2}
    logs = podman.run("podman logs colmet-node; podman logs colmet-collector")
    assert not re.findall(r" (?:WARNING|ERROR) (?!.*task_delayacct)", logs), logs

    number, used = run_job()
    data = Path(podman.run("podman volume inspect -f '{{.Mountpoint}}' colmet-data").strip())
    podman.run("podman stop -t 30 colmet-node colmet-collector")
    assert_stored(data, number, used, "OCI images")

    podman.run(BLOCKS["remove"])
    assert podman.run("podman ps -aq; podman volume ls -q; podman images -q") == ""
    assert not podman.settings.exists() and not data.exists()
