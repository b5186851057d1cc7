"""What each Debian package has of its own: Python modules by its dependencies, rooms of the source, commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTROL = (ROOT / "packaging/debian/control").read_text()
MODULES = ("fastapi", "kubernetes", "matplotlib", "msgpack", "numpy", "psutil", "pyarrow", "pyinotify", "requests")
MODULES += ("rich", "tables", "uvicorn", "zmq")
# The rooms that a package runs, with the fields of the packages that these need. colmet-common has the source of all.
ROOMS = {
    "colmet-node": (("colmet.common", "colmet.node"), ("Depends",)),
    "colmet-collector": (
        (
            *("colmet.common", "colmet.collector", "colmet.jobs", "colmet.stored", "colmet.web"),
            *("colmet.batch", "colmet.gridengine", "colmet.notices"),
        ),
        ("Depends", "Recommends"),
    ),
    "colmet-facility": (("colmet.common", "colmet.batch", "colmet.facility", "colmet.node.delivery"), ("Depends",)),
}
PICTURES = ("colmet.jobs.report.charts", "colmet.jobs.report.page")  # require matplotlib, which is only suggested
# Commands of colmet that serve a package's machine; those of colmet-common alone serve both.
_ANYWHERE = (
    *("status", "doctor", "top", "configure", "mem"),
    *("keygen", "enrol", "access", "login", "logout", "completion"),
)
COMMANDS = {
    "colmet-node": _ANYWHERE,
    "colmet-collector": ("jobs", "usage", "notices", "report", "extract", "plot", "completeness", *_ANYWHERE),
}
BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""
RUN = """
import contextlib, importlib, io
for module, function, arguments in {programs!r}:
    sys.argv = ["program", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = getattr(importlib.import_module(module), function)()
    except SystemExit as end:
        status = end.code
    assert not status and "usage:" in out.getvalue(), (module, arguments, status, out.getvalue()[:200])
"""


def modules_of(package, *fields):
    """The Python modules that a package and colmet-common depend on; of alternatives, the first."""
    text = "".join(
        [part for part in CONTROL.split("\n\n") if f"Package: {package}\n" in part or "colmet-common\n" in part]
    )
    named = [re.findall(rf"^{field}:((?:.*\n)(?: .*\n)*)", text, re.M) for field in ("Depends", *fields)]
    return {name for part in named for one in part for name in re.findall(r"(?<!\| )python3-(\w+)", one)}


def sources(rooms=("colmet",)):
    """The modules of some rooms."""
    paths = sorted((ROOT / "colmet").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if any(name == room or name.startswith(f"{room}.") for room in rooms)]


def programs_of(package):
    """The programs that a package installs, with colmet's commands: module, function, arguments."""
    pyproject = (ROOT / "pyproject.toml").read_text() + (ROOT / "setup.py").read_text()
    points = dict(re.findall(r'^\W*"?([\w.-]+?)"? = "?(colmet[\w.]*:\w+)"?,?$', pyproject, re.M))
    points |= dict(re.findall(r'"([\w.-]+) = (colmet[\w.]*:\w+)"', pyproject))
    lines = "".join((ROOT / f"packaging/debian/{name}.install").read_text() for name in ("colmet-common", package))
    names = [name for name in re.findall(r"^usr/bin/(\S+)$", lines, re.M) if name != "colmet-web"]  # a socket starts it
    found = [(*points[name].split(":"), ("--help",)) for name in names]
    return found + [("colmet.commands.colmet", "main", (name, "--help")) for name in COMMANDS.get(package, ())]


def run(package, code, *fields, python=sys.executable, path=""):
    """Run code with the Python modules of a package's dependencies alone."""
    blocked = tuple(set(MODULES) - modules_of(package, *fields))
    environment = {**os.environ, "PYTHONPATH": path or str(ROOT)}
    command = [python, "-c", BLOCK.format(blocked=blocked) + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def imports(modules):
    """Code that imports modules."""
    return f"import importlib\nfor name in {tuple(modules)!r}: importlib.import_module(name)\n"
