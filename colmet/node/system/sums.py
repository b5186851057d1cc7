"""Totals over parts of a node that come, go and start counting anew: ports, mounts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

MAX_TOTAL = 2**63 - 1  # what a column holds


class Sums:
    """Counters of several parts, added up. A total never goes down.

    A part that is gone, or cannot tell, keeps what it last had in the totals. One of whose counters any is lower than
    before has started anew: what it had stays, and all that it tells now is added.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}
        self._totals: dict[str, int] = {}

    def add(self, part: str, values: Mapping[str, int | None], whole: bool = True) -> None:
        """What a part tells now.

        Args:
            part: its name.
            values: its counters by name, None where it cannot tell.
            whole: of counters that it tells for the first time: whether what they have counted so far belongs in the
                totals, or only what they count from now on.
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
        """Forget all other parts: if one of their names comes back, that is another part. The totals stay."""
        for part in self._last.keys() - parts:
            del self._last[part]

    def totals(self) -> dict[str, int | None]:
        """The totals by counter; None for one that has become too large for any column."""
        return {name: total if total <= MAX_TOTAL else None for name, total in self._totals.items()}
