"""Temperatures as Colmet reports them, beside what lm-sensors reads from the same /sys."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.place import cannot_run

ROOT = Path(__file__).parents[2]
# lm-sensors wants a real sysfs at /sys: only what it reads there is the tree's, in a mount namespace of its own.
MOUNT = 'for one in class devices bus; do mount --bind "$1/$one" "/sys/$one" || exit; done; shift; exec "$@"'
LOOK = """
import json, subprocess, sys
from colmet.node.backends.temperature import TemperatureBackend
from colmet.common.host.host import Host

backend = TemperatureBackend(Host())
backend.open()
_, *rows = backend.sample([])
names = ("sensor", "source", "temperature", "critical")
values = [[row.values[name] for name in names] for row in rows]
sensors = subprocess.run(["sensors", "-j"], capture_output=True, text=True, check=True).stdout
json.dump({"colmet": values, "sensors": json.loads(sensors)}, sys.stdout, default=bytes.decode)
"""


@pytest.fixture(scope="module")
def sensors():
    done = subprocess.run([str(ROOT / "scripts/need.sh"), "lm-sensors"], check=False)
    if done.returncode or shutil.which("sensors") is None:
        cannot_run("this needs the package lm-sensors")


def printed(chips):
    """What lm-sensors says, as (chip, label, temperature, critical)."""
    for name, features in chips.items():
        for label, values in features.items():
            if isinstance(values, dict):
                one = {re.sub(r"temp\d+_", "", key): value for key, value in values.items()}
                yield name.split("-")[0], label, one["input"], one.get("crit")


def ours(rows):
    """The same of Colmet's rows."""
    for sensor, source, temperature, critical in rows:
        if source == "hwmon":
            device, _, label = sensor.partition("/")
            yield re.match(r"k10temp|[a-z_]+", device)[0], label, temperature, critical


@pytest.mark.usefixtures("root", "sensors")
@pytest.mark.parametrize(("tree", "count"), [("intel-two-socket", 12), ("intel-client", 4), ("amd-epyc", 12)])
def test_colmet_and_lm_sensors_see_the_same_temperatures(fake, tree, count):
    fake.tree(tree)
    inside = ["sh", "-c", MOUNT, "sh", str(fake.path / "sys"), sys.executable, "-c", LOOK]
    done = subprocess.run(["unshare", "-m", *inside], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    mine = sorted(ours(seen["colmet"]), key=str)
    # hwmon shows this thermal zone once more, and Colmet does not
    zones = [("acpitz", "temp1", value, crit) for name, _, value, crit in seen["colmet"] if name == "acpitz_0"]
    assert sorted([*mine, *zones], key=str) == sorted(printed(seen["sensors"]), key=str)
    assert len(mine) == count
