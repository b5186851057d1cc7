"""Who may import whom: docs/architecture.md, checked on the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "colmet").rglob("*.py"))

# library -> the modules, by prefix, that may import it
LIBRARIES = {
    "zmq": ("colmet.common.transport",),
    "msgpack": ("colmet.common.wire.",),
    "tables": ("colmet.collector.backends.hdf5.", "colmet.stored.", "colmet.commands."),
    "pyinotify": ("colmet.node.jobs.watches",),
    "pynvml": ("colmet.node.gpus.nvml",),
    "tomli": ("colmet.common.config.configuration",),
    "tomllib": ("colmet.common.config.configuration",),
    "requests": ("colmet.common.http_client",),
    "urllib3": ("colmet.common.http_client", "colmet.facility.jupyter"),
    "rich": ("colmet.commands.", "colmet.gridengine.", "colmet.jobs.report."),
    "matplotlib": ("colmet.jobs.report.charts",),
    "smtplib": ("colmet.notices.delivery",),
    "pyarrow": ("colmet.commands.",),
    "fastapi": ("colmet.web.",),
    "pydantic": ("colmet.web.",),
    "starlette": ("colmet.web.",),
    "uvicorn": ("colmet.web.",),
    "kubernetes": ("colmet.facility.",),
    "psutil": ("colmet.facility.",),
    "subprocess": (
        "colmet.common.host.command",
        "colmet.collector.backends.hdf5.check",
        "colmet.collector.web_child",
        "colmet.web.reports",
        "colmet.commands.",
        "colmet.stored.",
        "colmet.facility.",
    ),
    "ctypes": (
        "colmet.common.host.capabilities",
        "colmet.common.daemon.startup",
        "colmet.collector.backends.hdf5.calls",
        "colmet.collector.backends.hdf5.libhdf5",
        "colmet.node.kernel.clib",
        "colmet.node.kernel.job_accounting",
        "colmet.node.kernel.netlink",
        "colmet.node.kernel.perfevents",
        "colmet.node.backends.",
    ),
}


# room -> what it may import of the other rooms. colmet.commands may import all of them.
ROOMS = {
    "colmet.common": (),
    "colmet.node": ("colmet.common",),
    "colmet.collector": ("colmet.common", "colmet.jobs.archive"),
    "colmet.batch": ("colmet.common",),
    "colmet.stored": ("colmet.common", "colmet.collector"),
    "colmet.jobs.report": ("colmet.common", "colmet.stored", "colmet.jobs"),
    "colmet.jobs": ("colmet.common", "colmet.batch"),
    "colmet.web": (*("colmet.common", "colmet.collector", "colmet.stored", "colmet.jobs", "colmet.batch"),),
    "colmet.facility": ("colmet.common", "colmet.batch", "colmet.node.delivery"),
    "colmet.gridengine": ("colmet.common", "colmet.batch", "colmet.stored", "colmet.collector", "colmet.commands"),
    "colmet.notices": ("colmet.common", "colmet.jobs", "colmet.commands"),
    "colmet.commands": (
        *("colmet.common", "colmet.node", "colmet.collector", "colmet.batch", "colmet.stored", "colmet.web"),
        "colmet.jobs",
    ),
}


# a program that another one starts: importer, what it starts
LAUNCHERS = {
    *(("colmet.collector.web_child", "colmet.web"), ("colmet.collector.web_child", "colmet.web.main")),
    *(("colmet.commands.colmet", f"colmet.{satellite}.command") for satellite in ("gridengine", "notices")),
}
SATELLITES = ("colmet.facility", "colmet.gridengine", "colmet.notices")  # nothing else imports them


def room_of(module):
    """The room of a module, `colmet.node`; empty for what lies in none."""
    return next((room for room in (*ROOMS, "dev") if inside(module, room)), "")


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Every module that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(
            node.value, str
        ):  # the name of a module, or a program's text
            found.update(name for name in re.findall(r"\bcolmet(?:\.\w+)+", node.value) if name in KNOWN)
    return found


def inside(module, package):
    return module == package or module.startswith(package + ".")


def forbidden(importer, imported):
    """Why this import is not allowed, or None."""
    room, other = room_of(importer), room_of(imported)
    if (importer, imported) in LAUNCHERS:
        return None
    if other and room != other and not any(inside(imported, allowed) for allowed in ROOMS.get(room, ())):
        return f"{room} may import {', '.join(ROOMS.get(room, ())) or 'nothing of the other rooms'}"
    for part in ("node", "collector"):
        backends = f"colmet.{part}.backends"
        if inside(imported, backends) and not inside(importer, ".".join(imported.split(".")[:4])):
            if importer == f"colmet.{part}.main" and imported in (backends, f"{backends}.NAMES"):
                continue
            if importer == backends:  # NAMES itself
                continue
            if room == f"colmet.{part}":
                return "only main names backends, through NAMES"
    library = imported.split(".")[0]
    if library in LIBRARIES and not any(importer.startswith(prefix) for prefix in LIBRARIES[library]):
        return f"{library} belongs to {', '.join(LIBRARIES[library])}"
    return None


KNOWN = {name_of(path) for path in MODULES}


@pytest.mark.slow
def test_a_module_imports_only_what_its_layer_may():
    pairs = [(name_of(path), imported) for path in MODULES for imported in imports(path)]
    assert not {pair: why for pair in pairs if (why := forbidden(*pair))}


def test_nothing_of_the_core_may_import_a_satellite():
    allowed = {room: others for room, others in ROOMS.items() if room not in SATELLITES}
    assert not [room for room, others in allowed.items() if any(inside(one, s) for one in others for s in SATELLITES)]


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("colmet.common.config.cli", "colmet.node.jobs.job"),
        ("colmet.node.agent", "colmet.collector.journal"),
        ("colmet.collector.main", "colmet.node.kernel.clib"),
        ("colmet.node.agent", "colmet.node.backends.taskstats"),
        ("colmet.node.backends.jobproc", "colmet.node.backends.taskstats"),
        ("colmet.collector.main", "colmet.collector.backends.hdf5.output"),
        ("colmet.node.agent", "zmq"),
        ("colmet.collector.ingest.receiver", "msgpack"),
        ("colmet.collector.journal.journal", "tables"),
        ("colmet.node.backends.jobproc", "subprocess"),
        ("colmet.node.backends.nvidia", "pynvml"),
        ("colmet.common.tables.power", "colmet.node.backends.rapl"),
        ("colmet.node.agent", "dev.live"),
        ("colmet.commands.top_view", "dev.live"),
        ("colmet.collector.main", "colmet.web.__main__"),
        ("colmet.stored.hdf5", "colmet.commands.extract"),
    ],
)
def test_the_check_sees_what_is_not_allowed(importer, imported):
    assert forbidden(importer, imported)


@pytest.mark.slow
def test_the_node_opens_files_in_host_alone():
    for path in MODULES:
        name = name_of(path)
        # pins are of the machine's kernel, which is below no other root
        if not inside(name, "colmet.node") or name == "colmet.node.kernel.job_accounting":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("open", "os.open", "io.open"), f"{path}:{node.lineno}"
