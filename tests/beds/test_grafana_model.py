"""Grafana's own data model of dashboards, of the oldest version that they are for and of a newer one, knows each field.

The model is Grafana's published SDK: what it does not know is gone after it has read and written a dashboard.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.place import cannot_run

pytestmark = pytest.mark.slow

DASHBOARDS = sorted((Path(__file__).parents[2] / "packaging/grafana/dashboards").rglob("*.json"))
VERSIONS = {"10.4": "1769699796!10.4.0", "11.6": "1769699379!11.6.0"}
# of later versions; earlier ones pass over it
LATER = {"10.4": {"/templating/list[]/allowCustomValue"}, "11.6": set()}
PROGRAM = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

register_default_plugins()
for line in sys.stdin:
    print(JSONEncoder().encode(Dashboard.from_json(json.loads(line))))
"""


@pytest.fixture(scope="module", params=VERSIONS)
def model(request, tmp_path_factory):
    """A version, and what reads and writes dashboards by it."""
    folder = tmp_path_factory.mktemp("sdk")
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", folder]
    install += ["--no-deps", f"grafana-foundation-sdk=={VERSIONS[request.param]}"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        cannot_run(f"Grafana's SDK cannot be had from the package index: {done.stderr.strip()[-500:]}")

    def written(dashboards):
        program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{PROGRAM}"
        lines = "\n".join(json.dumps(one) for one in dashboards)
        done = subprocess.run(
            [sys.executable, "-c", program], input=lines, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return request.param, written


def lost(given, found, path=""):
    """The fields and values of a dashboard that are not in another one."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(found, dict) or name not in found:
                yield f"{path}/{name}"
            else:
                yield from lost(value, found[name], f"{path}/{name}")
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        for one, other in zip(given, found):
            yield from lost(one, other, f"{path}[]")
    elif given != found:
        yield f"{path}: {given!r} became {found!r}"


def test_each_field_of_each_dashboard_is_one_of_grafanas(model):
    version, written = model
    dashboards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len(dashboards) == 11
    for path, given, found in zip(DASHBOARDS, dashboards, written(dashboards)):
        assert set(lost(given, found)) <= LATER[version], path


def test_a_field_that_grafana_does_not_know_is_found(model):
    version, written = model
    text = DASHBOARDS[0].read_text()
    wrong = json.loads(re.sub(r'"fillOpacity"', '"fillOpaqueness"', text))
    assert any("fillOpaqueness" in field for field in set(lost(wrong, *written([wrong]))) - LATER[version])
