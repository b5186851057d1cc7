"""Division of a store of bounded size among its senders."""

from __future__ import annotations

LENIENCE = 4  # times the mean of the other senders: the limit of one in a store that drops its oldest


class Shares:
    """Counts each sender's part of a store, and computes how much more it may store.

    A sender may store as much as it leaves free: alone half of the store, each of three with unlimited demand a
    quarter. A later sender always finds room, and data of others is never dropped for it. Amounts of "" belong to no
    sender: they count, and may use all the room.

    Args:
        size: of the store: bytes, rows, or another unit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._held: dict[str, int] = {}

    def hold(self, sender: str, amount: int) -> None:
        """Add an amount to a sender's part; subtract if negative."""
        self.total += amount
        held = self._held.get(sender, 0) + amount
        if held:
            self._held[sender] = held
        else:
            self._held.pop(sender, None)

    def held(self, sender: str) -> int:
        """Return a sender's part."""
        return self._held.get(sender, 0)

    def room(self, sender: str) -> int:
        """Return how much more a sender may store; below 0 beyond its share."""
        free = self.size - self.total
        return (free - self._held.get(sender, 0)) // 2 if sender else free

    def exceeds(self, sender: str, amount: int = 0) -> bool:
        """Return whether a sender exceeds its share of a store that drops its oldest, with this amount added.

        It does if the amount does not fit and its part is far larger than the others': if all parts are large, the
        oldest data is dropped instead.
        """
        held = self._held.get(sender, 0)
        if not sender or 2 * amount <= self.size - self.total - held:  # it has room
            return False
        others = len(self._held) - (sender in self._held)
        return others > 0 and (held + amount) * others > LENIENCE * (self.total - held)

    def clear(self) -> None:
        """Start again with an empty store."""
        self.total = 0
        self._held.clear()
