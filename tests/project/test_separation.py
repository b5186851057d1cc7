"""Each Debian package runs with the Python modules of its own dependencies: those of the others may not be there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONTROL = (Path(__file__).parents[2] / "packaging/debian/control").read_text()
MODULES = ("fastapi", "kubernetes", "matplotlib", "msgpack", "numpy", "psutil", "pyarrow", "pyinotify", "requests")
MODULES += ("rich", "tables", "uvicorn", "zmq")
BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


def modules_of(package, *fields):
    """The Python modules that a package and colmet-common depend on."""
    text = "".join(
        [part for part in CONTROL.split("\n\n") if f"Package: {package}\n" in part or "colmet-common\n" in part]
    )
    named = [re.findall(rf"^{field}:((?:.*\n)(?: .*\n)*)", text, re.M) for field in ("Depends", *fields)]
    return {name for part in named for one in part for name in re.findall(r"python3-(\w+)", one)}


def run(package, code, *fields):
    blocked = tuple(set(MODULES) - modules_of(package, *fields))
    done = subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=blocked) + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_lists_of_dependencies_are_read():
    assert modules_of("colmet-node") == {"msgpack", "numpy", "zmq", "pyinotify", "requests"}
    assert "fastapi" in modules_of("colmet-collector", "Recommends") - modules_of("colmet-collector")


COMMANDS = """
from colmet.commands import colmet
for name in {names}:
    try:
        colmet.main([name, "--help"])
    except SystemExit as end:
        assert end.code == 0
"""


def test_the_node_alone_has_its_agent_and_the_commands_that_ask_it():
    names = ["status", "doctor", "top", "configure", "mem", "keygen", "enrol", "access", "completion"]
    run("colmet-node", f"import colmet.node.main{COMMANDS.format(names=names)}")
    code = "from colmet.commands import completion; assert {'colmet', 'colmet-node'} <= set(completion.trees())"
    run("colmet-node", code)


@pytest.mark.parametrize(
    "code",
    [
        "import colmet.collector.main",
        COMMANDS.format(
            names=["report", "extract", "plot", "completeness", "status", "doctor", "access", "completion"]
        ),
        "from colmet.commands import plot; from colmet.common.tables import schemas; schemas()",
        "from colmet.stored.elastic import ElasticHistory; from colmet.common.tables import schemas; schemas()",
        "from colmet.commands import completion; completion.script('bash', completion.trees())",
    ],
)
def test_the_collector_alone_has_the_commands_that_read_its_store(code):
    run("colmet-collector", code)


def test_the_collector_alone_serves_the_page():
    code = "from colmet.web import __main__, app, queries; queries._declared()"
    run("colmet-collector", code, "Recommends")


def test_the_facility_program_is_alone_on_a_login_node():
    run("colmet-facility", "import colmet.facility.command, colmet.facility.afmetrics")
