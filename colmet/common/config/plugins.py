"""Backends of other distributions, named by entry points: found, checked, and loaded in addition to Colmet's own.

A plug-in is installed by root, and runs with the daemon's permissions: the checks here are for its mistakes. An
unusable one is logged; Colmet's own backends and the other plug-ins run without it.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from colmet.common.config import cli
from colmet.common.daemon import startup
from colmet.common.errors import ColmetError

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_RESERVED = frozenset({"agent"})  # the row of the agent itself in agent_default


class EntryPoint(NamedTuple):
    """An entry point: name, ``module:Class``, and the distribution's name and version."""

    name: str
    target: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.name} = {self.target} of {self.distribution}"


class Backends(NamedTuple):
    """The classes of backends available to a daemon, the loaded plug-ins, and a line for each that is not loaded."""

    classes: Sequence[type[Any]]
    plugins: Sequence[EntryPoint] = ()
    problems: Sequence[str] = ()

    def parser(self, build: Callable[[Sequence[type[Any]]], cli.Parser]) -> cli.Parser:
        """Return the parser of the daemon's command line; it ignores unknown options if a plug-in is missing."""
        parser = build(self.classes)
        parser.ignores_unknown = bool(self.problems)
        return parser

    def counters(self) -> dict[str, int]:
        """Return the numbers of plug-ins loaded and not loaded."""
        return {"loaded": len(self.plugins), "failed": len(self.problems)}


def find(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, of all distributions importable by this Python."""
    found: dict[tuple[str, str], EntryPoint] = {}
    for distribution in metadata.distributions():
        try:
            for entry in distribution.entry_points:
                if entry.group == group:  # of two distributions of one name, the first on the path is imported
                    name, target = distribution.metadata["Name"], entry.value.partition("[")[0].strip()
                    made = EntryPoint(entry.name, target, f"{name} {distribution.version}")
                    found.setdefault((name.lower(), entry.name), made)
        except Exception as err:  # noqa: BLE001 - any distribution of this Python may be damaged
            log.debug("entry points not read: %s", err)
    return sorted(found.values(), key=lambda entry: (entry.distribution.lower(), entry.name))


def load(
    names: Mapping[str, str],
    group: str,
    base: type[Any],
    build_parser: Callable[[Sequence[type[Any]]], cli.Parser],
    check: Callable[[type[Any], Sequence[type[Any]]], None] = lambda cls, others: None,
) -> Backends:
    """Load Colmet's own backends and those of plug-ins.

    Args:
        names: Colmet's own, as ``module:Class`` by name.
        group: of the entry points of plug-ins.
        base: required base class of a plug-in's class.
        build_parser: builds the parser of the daemon's command line for classes.
        check: raises ValueError if a class conflicts with others.
    """
    classes: list[type[Any]] = list(startup.load(names))
    plugins, problems = [], []
    for entry in find(group):
        try:
            (cls,) = startup.load({entry.name: entry.target})
            _check_class(cls, base, [one.name for one in classes])
            check(cls, classes)
            _check_options(cls, classes, build_parser)
        except (Exception, SystemExit) as err:  # noqa: BLE001 - any failure of a plug-in is its own
            text = str(err) if isinstance(err, (ValueError, ImportError)) else f"{type(err).__name__}: {err}"
            problems.append(f"{entry}: {text}")
        else:
            classes.append(cls)
            plugins.append(entry)
    return Backends(classes, plugins, problems)


def _check_class(cls: Any, base: type[Any], taken: Sequence[str]) -> None:
    if not inspect.isclass(cls) or not issubclass(cls, base):
        raise ValueError(f"no class that extends {base.__module__}.{base.__qualname__}")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise ValueError(f"{cls.__qualname__} lacks {', '.join(missing)}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        raise ValueError(f"{cls.__qualname__}.name is {name!r}: use up to 32 lower case letters, digits, _ and -")
    if name in taken:
        raise ValueError(f"there is a backend named {name} already")


def _check_options(
    cls: type[Any], classes: Sequence[type[Any]], build_parser: Callable[[Sequence[type[Any]]], cli.Parser]
) -> None:
    """Check that the options of a class fit with the existing ones.

    Raises:
        ValueError: an option, or its name in argparse, belongs to another class; an argument is required.
        argparse.ArgumentError: an option belongs to another class.
    """
    taken = {action.dest for action in build_parser(classes).actions}
    try:
        parser = build_parser([*classes, cls])
        parser.format_help(everything=True)
    except (ValueError, TypeError, KeyError) as err:  # each version of argparse finds a wrong % in its own way
        raise ValueError(f"{err}; in the help of an option, write %% for a %") from err
    scratch = cli.Parser()
    own_help = len(scratch.actions)
    cls.add_options(scratch)
    for action in scratch.actions[own_help:]:
        option = next((name for name in action.option_strings if name.startswith("--")), "")
        if not option or action.required:
            raise ValueError(f"its argument {option or action.dest} is required, or has no name that begins with --")
        if action.dest in taken:
            raise ValueError(f"{option} stores its value as {action.dest}, as another option does")


def is_own(cls: type[Any]) -> bool:
    """Return whether a class is Colmet's own."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def make(cls: type[Any], *args: Any) -> Any:
    """Return the backend requested by the options; None if not requested, or if a plug-in fails to make it.

    Raises:
        ConfigError: the options request the impossible.
    """
    made: list[Any] = []
    attempt(cls, lambda: made.append(cls.from_options(*args)))
    return made[0] if made else None


def attempt(backend: Any, step: Callable[[], Any]) -> bool:
    """Do a step of a backend's start or end; return whether it was done. A defect of a plug-in is logged as an error.

    Raises:
        ColmetError: raised on purpose by the step.
    """
    try:
        step()
    except ColmetError:
        raise
    except Exception as err:
        if is_own(backend if inspect.isclass(backend) else type(backend)):
            raise
        log.error("plug-in failed backend=%s: %s: %s", backend.name, type(err).__name__, err)
        return False
    return True
