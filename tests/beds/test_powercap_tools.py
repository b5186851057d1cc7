"""Zones and energies as Colmet reports them, beside what the powercap project's own tools read from the same /sys."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.place import cannot_run

ROOT = Path(__file__).parents[2]
TOOLS = (("rapl-info",), ("powercap-info", "-p", "intel-rapl"))
# Runs in a mount namespace of its own, where the /sys of a tree is the one at /sys.
LOOK = f"""
import json, pathlib, subprocess, sys, time
from colmet.node.backends.rapl import RaplBackend
from colmet.common.host.host import Host

def tools():
    return [subprocess.run(tool, capture_output=True, text=True, check=True).stdout for tool in {TOOLS!r}]

backend = RaplBackend(Host(), 5.0)
before = tools()
backend.open()
time.sleep(0.1)
for n, path in enumerate(sorted(pathlib.Path("/sys/devices/virtual/powercap/intel-rapl").rglob("energy_uj"))):
    path.write_text(f"{{int(path.read_text()) + 1_000_000 * (n + 1)}}\\n")
_, *rows = backend.sample([])
backend.close()
values = [[row.values["zone"].decode(), row.values["energy"], row.values["max_energy_range"]] for row in rows]
json.dump({{"before": before, "after": tools(), "colmet": values}}, sys.stdout)
"""


@pytest.fixture(scope="module")
def tools():
    done = subprocess.run([str(ROOT / "scripts/need.sh"), "powercap-utils"], check=False)
    if done.returncode or not all(shutil.which(tool[0]) for tool in TOOLS):
        cannot_run("this needs the package powercap-utils")


def zones_of(text):
    """What a tool says of each zone: energy and range by label."""
    zones, label, top = {}, "", ""
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        key, _, value = line.strip().partition(": ")
        if "Constraint" in line:
            label = ""  # what follows is not the zone's
        elif "one " in line:
            label = "next"
        elif key == "name" and label == "next":
            top = value if depth == 2 else top
            label = value if depth == 2 else f"{top}/{value}"
            zones[label] = {}
        elif label in zones and key.endswith("_uj"):
            zones[label][key] = int(value)
    return zones


@pytest.mark.usefixtures("root", "tools", "lib_rapl")
@pytest.mark.parametrize("tree", ["intel-two-socket", "intel-client", "amd-epyc", "intel-eight-socket"])
def test_colmet_and_the_tools_see_the_same_zones_and_energies(fake, tree):
    fake.tree(tree)
    inside = ["sh", "-c", 'mount --bind "$1" /sys && exec "$2" -c "$3"', "sh"]
    done = subprocess.run(
        ["unshare", "-m", *inside, str(fake.path / "sys"), sys.executable, LOOK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    ours = {zone: (energy, most) for zone, energy, most in seen["colmet"]}
    for before, after in zip(map(zones_of, seen["before"]), map(zones_of, seen["after"])):
        assert ours == {
            zone: (after[zone]["energy_uj"] - before[zone]["energy_uj"], after[zone]["max_energy_range_uj"])
            for zone in before
        }
    assert len(ours) >= 4 and min(energy for energy, _ in ours.values()) > 0
