"""Which agent a batch is of, where several send under one host name: each of them is stored under a name of its own.

Rows of two agents under one name would be summed, or make counters jump. So under each name there is at any moment one
agent. An agent is recognised by its start (epoch, or dialect where there is none) and the address it sends from. Two
starts that were heard within the last minute or so, and whose samples lie between each other's, run beside each other:
a start that was followed by another one sends nothing that is newer than the first sample of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from colmet.common.live.namesakes import MOST, name_of

MAX_STARTS = 16  # of one host name that are remembered, those heard last
# A start that was not heard for so long, and three of its periods, has ended.
QUIET_NS = 60 * 10**9
MAX_PERIOD_NS = 600 * 10**9


@dataclass
class Start:
    """What one start of an agent has sent.

    Attributes:
        ident: its epoch; the dialect of an agent that has none.
        peer: the address it sends from; empty where that is not known.
        place: of the name under which its batches are stored now.
        spans: by place, the times of the first and the last sample that were stored there.
        heard_ns: when it was heard last.
        period_ns: between its last two samples.
    """

    ident: int | str
    peer: str
    place: int = 0
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    heard_ns: int = 0
    period_ns: int = 0

    def is_live(self, now_ns: int) -> bool:
        """Whether it was heard within the last minute and three periods."""
        return now_ns - self.heard_ns <= QUIET_NS + 3 * self.period_ns

    def more(self, place: int, time_ns: int) -> tuple[int, int]:
        """Return the times, first and last, that a sample of this time adds to those that it has at a place."""
        if place != self.place or place not in self.spans:
            return time_ns, time_ns
        first, last = self.spans[place]
        if time_ns > last:
            return last + 1, time_ns
        return time_ns, max(time_ns, first - 1)

    def enter(self, place: int) -> None:
        """Be stored at this place from now on; when it was there before is past."""
        if place != self.place:
            self.spans.pop(place, None)
            self.place = place

    def note(self, time_ns: int, now_ns: int) -> None:
        """Have this sample at its place."""
        known = self.spans.get(self.place)
        if known is None:
            self.spans[self.place] = time_ns, time_ns
        else:
            first, last = known
            if time_ns > last:
                self.period_ns = min(time_ns - last, MAX_PERIOD_NS)
                self.spans[self.place] = first, time_ns
            elif time_ns < first:
                self.spans[self.place] = time_ns, last
        self.heard_ns = now_ns


class Namesakes:
    """The agents of one host name, and under which of its names each is stored.

    Args:
        host: the name that they share.

    Attributes:
        names: that batches were stored under; the host's own first.
    """

    def __init__(self, host: str) -> None:
        self.names = [host]
        self._starts: list[Start] = []  # the one heard last is the last

    def add(self, name: str) -> None:
        """Batches are stored under this name, too."""
        if name not in self.names:
            self.names.append(name)

    def place(self, ident: int | str, peer: str, time_ns: int, now_ns: int) -> int:
        """Return the place of the name under which a batch is stored, and note it there.

        Args:
            ident: epoch of the agent, or its dialect.
            peer: the address it came from; empty where that is not known.
            time_ns: of its sample.
            now_ns: of the clock.
        """
        start = self._start(ident, peer)
        if start is None:
            start = Start(ident, peer, place=-1)
            self._starts.append(start)
            del self._starts[:-MAX_STARTS]
        elif self._starts[-1] is not start:
            self._starts.remove(start)
            self._starts.append(start)
        start.enter(max(start.place, 0) if len(self._starts) == 1 else self._choose(start, time_ns, now_ns))
        start.note(time_ns, now_ns)
        return start.place

    def _start(self, ident: int | str, peer: str) -> Start | None:
        for start in reversed(self._starts):
            if start.ident == ident and (start.peer == peer or not start.peer or not peer):
                start.peer = start.peer or peer
                return start
        return None

    def _choose(self, start: Start, time_ns: int, now_ns: int) -> int:
        """The place it has, or a lower one whose agent has ended; the lowest that is free where it has none."""
        others = [one for one in self._starts if one is not start and one.is_live(now_ns)]
        is_new = start.place < 0
        for place in range(MOST):
            there = [one for one in others if one.place == place]
            if there and not is_new and place != start.place:
                continue  # somebody is there
            first, last = start.more(place, time_ns)
            spans = [one.spans[place] for one in others if place in one.spans]
            if all(last < low or high < first for low, high in spans) and not any(
                _yields(start, one, is_new) for one in there
            ):
                return place
        return MOST - 1

    def live(self, now_ns: int) -> set[int | str]:
        """Return the starts that were heard within the last minute or so."""
        return {start.ident for start in self._starts if start.is_live(now_ns)}

    def live_names(self, now_ns: int) -> list[str]:
        """Return the names of agents that were heard within the last minute or so."""
        places = sorted({start.place for start in self._starts if start.is_live(now_ns)})
        return [name_of(self.names[0], place) for place in places]

    def state(self) -> list[list[Any]]:
        """Return what `restored` makes the same of."""
        return [
            [start.ident, start.peer, start.place, [[place, *span] for place, span in start.spans.items()]]
            for start in self._starts
        ]

    @classmethod
    def restored(cls, host: str, state: Sequence[Sequence[Any]], now_ns: int) -> Namesakes:
        """Return what `state` described, all heard just now; ValueError or TypeError where it is none."""
        namesakes = cls(host)
        for ident, peer, place, spans in state[-MAX_STARTS:]:
            start = Start(ident if isinstance(ident, str) else int(ident), str(peer), min(max(int(place), 0), MOST - 1))
            start.spans = {int(at): (int(first), int(last)) for at, first, last in spans[:MOST]}
            start.heard_ns = now_ns
            namesakes._starts.append(start)
            for at in start.spans:
                namesakes.add(name_of(host, at))
        return namesakes

    def replay(self, place: int, ident: int | str, time_ns: int, now_ns: int) -> None:
        """Note a batch that was stored at this place before a restart."""
        start = self._start(ident, "")
        if start is None:
            start = Start(ident, "")
            self._starts.append(start)
            del self._starts[:-MAX_STARTS]
        start.enter(place)
        start.note(time_ns, now_ns)


def _yields(start: Start, other: Start, is_new: bool) -> bool:
    """Whether a start leaves the name to another one that is heard under it, whatever the times of their samples."""
    if isinstance(start.ident, str) and isinstance(other.ident, int):
        return True  # an agent of Colmet 0.6 beside one that numbers its batches
    if isinstance(start.ident, int) and isinstance(other.ident, str):
        return False
    return is_new and bool(start.peer and other.peer and start.peer != other.peer)
