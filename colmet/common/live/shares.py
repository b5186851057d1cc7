"""How a store of bounded size is divided among the senders that fill it."""

from __future__ import annotations

LENIENCE = 4  # times the mean of the other senders, which one may hold of a store that drops its oldest


class Shares:
    """Counts what each sender holds of a store, and decides how much more it may hold.

    A sender may hold as much as it leaves free: alone half of the store, each of three that want all a quarter. A
    sender that comes later always finds room, and what others hold is never dropped for it. Amounts of "" are nobody's:
    they count, and have all the room there is.

    Args:
        size: of the store: bytes, rows, or whatever is counted.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._held: dict[str, int] = {}

    def hold(self, sender: str, amount: int) -> None:
        """Count so much more for a sender, or less where that is negative."""
        self.total += amount
        held = self._held.get(sender, 0) + amount
        if held:
            self._held[sender] = held
        else:
            self._held.pop(sender, None)

    def room(self, sender: str) -> int:
        """Return how much more a sender may hold; below 0 where it holds more than its share."""
        free = self.size - self.total
        return (free - self._held.get(sender, 0)) // 2 if sender else free

    def exceeds(self, sender: str, amount: int = 0) -> bool:
        """Return whether a sender of a store that drops its oldest holds, with so much more, beyond its share.

        It does where it has not the room, and holds far more than the others do: where all hold much, the oldest is
        what has to go.
        """
        held = self._held.get(sender, 0) + amount
        others = len(self._held) - (sender in self._held)
        if not sender or not others or amount <= self.room(sender):
            return False
        return held * others > LENIENCE * (self.total + amount - held)

    def clear(self) -> None:
        """Begin again with an empty store."""
        self.total = 0
        self._held.clear()
