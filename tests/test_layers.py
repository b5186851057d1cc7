"""Who may import whom: docs/architecture.md, checked on the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "colmet").rglob("*.py"))

# library -> the modules, by prefix, that may import it
LIBRARIES = {
    "zmq": ("colmet.common.transport",),
    "msgpack": ("colmet.common.wire.",),
    "tables": ("colmet.collector.backends.hdf5.", "colmet.tools."),
    "pyinotify": ("colmet.node.jobs.watches",),
    "pynvml": ("colmet.node.gpus.nvml",),
    "tomli": ("colmet.common.runtime.configuration",),
    "tomllib": ("colmet.common.runtime.configuration",),
    "requests": (
        "colmet.collector.backends.elasticsearch.",
        "colmet.tools.facility.",
        "colmet.tools.mem.",
    ),
    "rich": ("colmet.tools.",),
    "matplotlib": ("colmet.tools.",),
    "pyarrow": ("colmet.tools.",),
    "fastapi": ("colmet.tools.web.",),
    "pydantic": ("colmet.tools.web.",),
    "starlette": ("colmet.tools.web.",),
    "uvicorn": ("colmet.tools.web.",),
    "kubernetes": ("colmet.tools.facility.",),
    "psutil": ("colmet.tools.facility.",),
    "subprocess": (
        "colmet.node.system.command",
        "colmet.collector.backends.hdf5.isolated",
        "colmet.collector.web_launcher",
        "colmet.tools.",
    ),
    "ctypes": (
        "colmet.common.runtime.capabilities",
        "colmet.tools.doctor.clock",
        "colmet.collector.malloc",
        "colmet.node.system.clib",
        "colmet.node.kernel.netlink",
        "colmet.common.runtime.capabilities",
        "colmet.node.backends.",
    ),
}


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
    return found


def inside(module, package):
    return module == package or module.startswith(package + ".")


def forbidden(importer, imported):
    """Why this import is not allowed, or None."""
    if inside(importer, "colmet.common"):
        for part in ("node", "collector", "tools"):
            if inside(imported, f"colmet.{part}"):
                return f"common knows nothing of {part}"
    for one, other in (("node", "collector"), ("collector", "node")):
        if inside(importer, f"colmet.{one}") and (
            inside(imported, f"colmet.{other}") or inside(imported, "colmet.tools")
        ):
            return f"{one} knows nothing of {other} and tools"
    for part in ("node", "collector"):
        backends = f"colmet.{part}.backends"
        if inside(imported, backends) and not inside(importer, ".".join(imported.split(".")[:4])):
            if importer == f"colmet.{part}.main" and imported in (backends, f"{backends}.NAMES"):
                continue
            if not inside(importer, "colmet.tools"):
                return "only main names backends, through NAMES"
    library = imported.split(".")[0]
    if library in LIBRARIES and not any(importer.startswith(prefix) for prefix in LIBRARIES[library]):
        return f"{library} belongs to {', '.join(LIBRARIES[library])}"
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_its_layer_may(path):
    wrong = {imported: forbidden(name_of(path), imported) for imported in imports(path)}
    assert not {imported: why for imported, why in wrong.items() if why}


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("colmet.common.runtime.cli", "colmet.node.jobs.jobs"),
        ("colmet.node.agent", "colmet.collector.buffer"),
        ("colmet.collector.main", "colmet.node.system.host"),
        ("colmet.node.agent", "colmet.node.backends.taskstats"),
        ("colmet.node.backends.jobproc", "colmet.node.backends.taskstats"),
        ("colmet.collector.main", "colmet.collector.backends.hdf5.output"),
        ("colmet.node.agent", "zmq"),
        ("colmet.collector.ingest.receiver", "msgpack"),
        ("colmet.collector.buffer", "tables"),
        ("colmet.node.backends.jobproc", "subprocess"),
        ("colmet.node.backends.nvidia", "pynvml"),
    ],
)
def test_the_check_sees_what_is_not_allowed(importer, imported):
    assert forbidden(importer, imported)


def test_the_node_opens_files_in_host_alone():
    for path in MODULES:
        name = name_of(path)
        # processes opens what the kernel says of its own threads, which is below no other root
        if not inside(name, "colmet.node") or name in ("colmet.node.system.host", "colmet.node.system.processes"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("open", "os.open", "io.open"), f"{path}:{node.lineno}"
