"""Metrics in the text format of Prometheus, version 0.0.4, in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Union

from colmet.common.units import UNITS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PIECE = 100  # lines of a piece; other threads can work between two pieces

Number = Union[int, float]
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Family(NamedTuple):
    """All samples of one name, made by `named`, of a kind (counter, gauge, untyped): `labels`, and a value each."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[str, Number]]


def named(*parts: str, kind: str = "gauge") -> str:
    """Return a metric's name: the parts joined; those of counters end in _total."""
    name = _NOT_A_NAME.sub("_", "_".join(parts))
    return f"{name}_total" if kind == "counter" and not name.endswith("_total") else name


def in_base_unit(name: str, unit: str, kind: str) -> tuple[str, Number]:
    """Return the suffix of a metric's name, with its base unit, and the divisor of its values."""
    return named(name + UNITS[unit].prometheus, kind=kind), UNITS[unit].divisor


def labels(pairs: Mapping[str, str]) -> str:
    """Return labels in braces; "" for none."""
    if not pairs:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs.items()]) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render(families: Iterable[Family]) -> Iterator[str]:
    """Yield the text, in pieces of a number of lines; skip families without samples."""
    for family in families:
        help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines = [f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.kind}\n"]
        for sample_labels, value in family.samples:
            lines.append(f"{family.name}{sample_labels} {value}\n")
            if len(lines) > PIECE:
                yield "".join(lines)
                lines = []
        if len(lines) != 1 or not lines[0].startswith("#"):
            yield "".join(lines)
