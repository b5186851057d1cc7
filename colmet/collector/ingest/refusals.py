"""The latest refused messages, by the node or the address that they came from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

MAX_NAMES = 100
LASTS_S = 600.0  # a refusal is reported, unless its node is heard before
MAX_REASON = 200  # characters


class Refusal(NamedTuple):
    """The latest refusal of a name."""

    time_ns: int
    reason: str
    times: int  # refusals of the name


class Refusals:
    """Keeps the latest refusal of each name: of a host whose key is another's, else of an address.

    For the main thread.
    """

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._latest: dict[str, Refusal] = {}

    def add(self, name: str, reason: str) -> None:
        """Add a refusal; of too many names, the one refused longest ago is forgotten."""
        before = self._latest.pop(name, None)
        while len(self._latest) >= MAX_NAMES:
            del self._latest[next(iter(self._latest))]
        text = "".join([c if c.isprintable() else "?" for c in reason[:MAX_REASON]])
        self._latest[name] = Refusal(self._now_ns(), text, 1 if before is None else before.times + 1)

    def current(self, heard_ns: Mapping[str, int]) -> dict[str, Refusal]:
        """Return the recent refusals of names that were not heard after them, the latest first.

        Args:
            heard_ns: when the last accepted batch of each host came.
        """
        since_ns = self._now_ns() - int(LASTS_S * 1e9)
        recent = [(name, refusal) for name, refusal in self._latest.items() if refusal.time_ns > since_ns]
        return {name: refusal for name, refusal in reversed(recent) if heard_ns.get(name, 0) <= refusal.time_ns}
