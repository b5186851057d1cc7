"""Checks of the Python modules, the C libraries, and the enabled backends on this node."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from colmet.commands.doctor.target import Target
from colmet.common.errors import BackendUnavailable, ColmetError
from colmet.common.runtime.checks import Finding, TimedOut, bounded, fail, good, severe, take_warnings, warn
from colmet.common.runtime.dependencies import how_to_install
from colmet.common.runtime.documents import document

if TYPE_CHECKING:
    from colmet.node.backend import InputBackend

BACKEND_S = 20.0
_SOURCE = Path(__file__).resolve().parents[3]
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)(?:\[[^]]*\])?\s*\(?(?P<bounds>[^;()]*)\)?\s*(?:;\s*(?P<marker>.*))?"
)
_MARKER = re.compile(r"python_version\s*(<|>=)\s*[\"'](\d+)\.(\d+)[\"']")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)[\"']")
# Modules required by one side only; a Debian package depends on those of its side.
_ONE_SIDED = {"pyinotify": "node", "pyasyncore": "node", "tables": "collector", "requests": "collector"}
_LIBRARIES = (
    ("lib_perf_hw", "LIB_PERFHW_PATH", "colmet.node.kernel.perfcounters", "--enable-perfhw"),
    ("lib_rapl", "LIB_RAPL_PATH", "colmet.node.backends.rapl", "--enable-RAPL"),
)


class Requirement(NamedTuple):
    """A distribution required by Colmet."""

    name: str
    least: tuple[int, ...]  # the oldest version, as numbers; empty for any
    text: str  # the bounds, in pip's syntax
    extra: str = ""  # "" if it is always required, else the extra, such as "tools"


def parse_requirement(line: str) -> Requirement | None:
    """Return the requirement in a line for pip; None without one, or for other versions of Python."""
    match = _REQUIREMENT.fullmatch(line.partition(" #")[0].strip())
    if match is None:
        return None
    marker = match["marker"] or ""
    condition, extra = _MARKER.search(marker), _EXTRA.search(marker)
    if condition:
        newer = sys.version_info[:2] >= (int(condition[2]), int(condition[3]))
        if newer != (condition[1] == ">="):
            return None
    least = re.search(r">=\s*([0-9.]+)", match["bounds"])
    least_numbers = numbers(least[1]) if least else ()
    return Requirement(match["name"], least_numbers, match["bounds"].strip(), extra[1] if extra else "")


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparisons."""
    found = takewhile(bool, [re.match(r"\d+", part) for part in version.split(".")])
    return tuple(int(digits[0]) for digits in found if digits)


def requirements() -> list[Requirement]:
    """Return Colmet's requirements, from its installation or its source."""
    is_source = (_SOURCE / "setup.py").exists()
    try:
        if is_source:
            lines = (_SOURCE / "requirements.txt").read_text("utf-8").splitlines()
            tools = (_SOURCE / "requirements-tools.txt").read_text("utf-8").splitlines()
            lines += [f"{line.partition(' #')[0]}; extra == 'tools'" for line in tools if not line.startswith("#")]
        else:
            lines = metadata.requires("colmet") or []
    except metadata.PackageNotFoundError:
        lines = []
    return [one for line in lines if line and not line.startswith("#") and (one := parse_requirement(line)) is not None]


def version_of(name: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_modules(target: Target) -> Sequence[Finding]:
    """Check Python, and the modules that the daemon imports, with their versions."""
    fine = [f"Python {'.'.join(map(str, sys.version_info[:3]))}"]
    wrong = []
    known = requirements()
    for one in known:
        if one.extra or _ONE_SIDED.get(one.name, target.side) != target.side:
            continue
        version = version_of(one.name)
        remedy = f"`{sys.executable} -m pip install '{one.name}{one.text}'`; of Debian's packages: `apt-get install -f`"
        if version is None:
            wrong.append(fail(f"the Python module {one.name} is not installed", remedy))
        elif numbers(version) < one.least:
            wrong.append(fail(f"{one.name} {version} is older than {one.text}", remedy))
        else:
            fine.append(f"{one.name} {version}")
    if target.damage and not wrong:
        remedy = "reinstall what that names, or colmet with its dependencies"
        return [fail(f"{target.program} cannot be loaded: {target.damage}", remedy)]
    if wrong:
        return wrong
    tools = {one.name: version_of(one.name) for one in known if one.extra == "tools"}
    missing = [name for name, version in tools.items() if version is None]
    hint = f" ({how_to_install(*missing)})" if missing else ""
    listed = ", ".join([f"{name} {version or 'is not installed'}" for name, version in tools.items()])
    found = [good(", ".join(fine)), good(f"for pictures, Parquet and the terminal: {listed}{hint}")]
    return found if tools else found[:1]


def check_plugins(target: Target) -> Iterator[Finding]:
    """Check the backends of other distributions: which are loaded, and why others are not."""
    if target.damage:
        return
    for problem in target.plugins.problems:
        yield fail(f"plug-in not loaded: {problem}", f"correct or remove its distribution ({document('plugins.md')})")
    for entry in target.plugins.plugins:
        yield good(f"plug-in: {entry}")


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment to the daemon's value, until the end."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def check_libraries(target: Target) -> Iterator[Finding]:
    """Check the C libraries: built, and of this version; and what LIB_..._PATH names."""
    from colmet.node.system import clib

    asked = {"--enable-perfhw": target.options.enable_perfhw, "--enable-RAPL": target.options.enable_RAPL}
    for folder, variable, module, switch in _LIBRARIES:
        try:
            with _environment(variable, target.environment(variable)):
                clib.load(folder, import_module(module).ABI, variable)
        except BackendUnavailable as err:
            text, _, remedy = str(err).rpartition("; ")
            say = fail if asked[switch] else warn
            yield say(text, f"{remedy}; only {switch} requires it")
        else:
            yield good(f"the library of {switch} is built")
        for text in take_warnings():
            yield warn(
                text, f"remove {variable} from the environment of colmet-node: it is of Colmet 0.6, or of another build"
            )


def check_backends(target: Target) -> Iterator[Finding]:
    """Open each enabled backend as the daemon does: devices, files, drivers, programs that answer."""
    for backend in target.backends:
        on, off = type(backend).switches()
        without = (
            f"start with {off}" if off else f"start without {on}" if on else f"see {document('troubleshooting.md')}"
        )
        try:
            warnings = bounded(lambda backend=backend: _open(backend), BACKEND_S)  # type: ignore[misc]
        except BackendUnavailable as err:
            text = str(err)
            found, mark, remedy = text.partition(" Remedy: ")
            if not mark:
                found, _, remedy = text.partition("; ")
            yield severe(f"{backend.name}: {found.rstrip('.')}", remedy or without)
        except TimedOut as err:
            yield severe(f"{backend.name}: {err}", f"what it asks hangs: a device, a driver or a program; {without}")
        except (ColmetError, OSError) as err:
            yield severe(f"{backend.name}: {err}", without)
        else:
            yield good(f"{backend.name}: can measure")
            for text in warnings if backend.name != "taskstats" else ():  # others checks report them
                yield warn(f"{backend.name}: {text}", without)


def _open(backend: InputBackend) -> list[str]:
    """Open a backend and close it; return its warnings."""
    try:
        backend.open()
    finally:
        backend.close()
    return take_warnings()
