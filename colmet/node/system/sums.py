"""Totals over parts of a node that appear, disappear and restart their counters: ports, mounts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

MAX_TOTAL = 2**63 - 1  # largest value of a column


class Sums:
    """Counters of several parts, added up. A total never decreases.

    A part that is gone or unreadable keeps its last values in the totals. If any counter of a part is lower than
    before, the part has restarted: its old values stay, and its new values are added in full.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}
        self._totals: dict[str, int] = {}

    def add(self, part: str, values: Mapping[str, int | None], whole: bool = True) -> None:
        """Add the current counters of a part.

        Args:
            part: its name.
            values: its counters by name, None if unreadable.
            whole: for a counter seen for the first time: whether its value so far belongs in the totals, or only its
                later growth.
        """
        known = {name: value for name, value in values.items() if value is not None}
        last = self._last.get(part, {})
        if any(value < last.get(name, 0) for name, value in known.items()):
            last = dict.fromkeys(last, 0)
        for name, value in known.items():
            grown = value - last.get(name, 0 if whole else value)
            self._totals[name] = self._totals.get(name, 0) + grown
        self._last[part] = {**last, **known}

    def keep_only(self, parts: Collection[str]) -> None:
        """Forget all other parts: a later part of the same name is a new one. The totals stay."""
        for part in self._last.keys() - parts:
            del self._last[part]

    def totals(self) -> dict[str, int | None]:
        """Return the totals by counter; None for a total too large for any column."""
        return {name: total if total <= MAX_TOTAL else None for name, total in self._totals.items()}
