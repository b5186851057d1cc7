"""Host names shared by several agents: the second agent of `vm` is stored as `vm~2` (docs/link.md)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

MOST = 8  # agents of one host name stored separately
_NAME = re.compile(r"(.+)~([2-9])", re.DOTALL)


def name_of(host: str, place: int) -> str:
    """Return the stored name of the agent at this place of a host name; place 0 is the host's own."""
    return host if place == 0 else f"{host}~{place + 1}"


def base_of(name: str) -> str:
    """Return the host name sent by an agent, for its stored name."""
    found = _NAME.fullmatch(name)
    return found[1] if found else name


def place_of(name: str) -> int:
    """Return the place of a name among those of one host: 0 for the host's own."""
    found = _NAME.fullmatch(name)
    return int(found[2]) - 1 if found else 0


def is_namesake(name: str) -> bool:
    """Return whether a name is that of a second, third, ... agent of one host name."""
    return "~" in name and _NAME.fullmatch(name) is not None


def counted_once(names: Iterable[str]) -> list[str]:
    """Return the names without namesakes of names also present: agents of one machine see the same jobs."""
    present: Collection[str] = list(names)
    lowest: dict[str, int] = {}
    for name in present:
        base, place = base_of(name), place_of(name)
        lowest[base] = min(place, lowest.get(base, place))
    return [name for name in present if place_of(name) == lowest[base_of(name)]]


def repeated(jobs: Mapping[str, Collection[int]]) -> set[tuple[str, int]]:
    """Return (name, job) of each job also seen by an agent with a lower place of the same host name.

    Args:
        jobs: by the stored names of the agents.
    """
    found = set()
    known: dict[str, set[int]] = {}
    bases = {base_of(name) for name in jobs if is_namesake(name)}
    for name in sorted([name for name in jobs if base_of(name) in bases], key=place_of):
        before = known.setdefault(base_of(name), set())
        found |= {(name, job) for job in jobs[name] if job in before}
        before.update(jobs[name])
    return found


def in_turn(times: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return masks of the rows of a job that count: of a higher place, those before and after all of lower places.

    Args:
        times: of the rows of each name, of one job in one table.
    """
    spans: dict[str, tuple[float, float]] = {}
    found = {}
    for name in sorted(times, key=place_of):
        base, at = base_of(name), times[name]
        span = spans.get(base)
        keep = np.ones(len(at), np.bool_) if span is None else (at < span[0]) | (at > span[1])
        if keep.any():
            first, last = float(at[keep].min()), float(at[keep].max())
            spans[base] = (first, last) if span is None else (min(span[0], first), max(span[1], last))
        found[name] = keep
    return found
