"""Assignment of batches to agents sending under one host name: each agent is stored under a name of its own.

Rows of two agents under one name would be summed, or make counters jump. So each name has one agent at any moment. An
agent is recognised by its start (epoch, or dialect without one) and its address. Two starts heard within the last
minute or so, with samples between each other's, run in parallel: a start followed by another one sends nothing newer
than the first sample of its successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from colmet.common.live.namesakes import MOST, name_of

MAX_STARTS = 16  # of one host name, those heard last
# A start silent for longer than this and three of its periods has ended.
QUIET_NS = 60 * 10**9
MAX_PERIOD_NS = 600 * 10**9


@dataclass
class Start:
    """The samples of one start of an agent."""

    ident: int | str  # its epoch; the dialect of an agent without one
    peer: str  # its address; empty if unknown
    place: int = 0  # of the name its batches are stored under now
    # by place, the times of the first and the last sample stored there
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    heard_ns: int = 0  # time of its latest batch
    period_ns: int = 0  # between its last two samples

    def is_live(self, now_ns: int) -> bool:
        """Return whether it was heard within the last minute and three periods."""
        return now_ns - self.heard_ns <= QUIET_NS + 3 * self.period_ns

    def more(self, place: int, time_ns: int) -> tuple[int, int]:
        """Return the span, first and last time, that a sample of this time adds to the start's span at a place."""
        if place != self.place or place not in self.spans:
            return time_ns, time_ns
        first, last = self.spans[place]
        if time_ns > last:
            return last + 1, time_ns
        return time_ns, max(time_ns, first - 1)

    def enter(self, place: int) -> None:
        """Set the place for its batches from now on; an earlier span there is forgotten."""
        if place != self.place:
            self.spans.pop(place, None)
            self.place = place

    def note(self, time_ns: int, now_ns: int) -> None:
        """Add a sample to the span of its place."""
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
    """The agents of one host name, and the stored name of each.

    Attributes:
        names: the stored names; the host's own first.
    """

    def __init__(self, host: str) -> None:
        self.names = [host]
        self._starts: list[Start] = []  # latest heard last

    def add(self, name: str) -> None:
        """Add a stored name."""
        if name not in self.names:
            self.names.append(name)

    def place(self, ident: int | str, peer: str, time_ns: int, now_ns: int) -> int:
        """Return the place of the name to store a batch under, and note it there; `peer` is empty if unknown."""
        start = self._start(ident, peer, place=-1)
        if self._starts[-1] is not start:
            self._starts.remove(start)
            self._starts.append(start)
        start.enter(max(start.place, 0) if len(self._starts) == 1 else self._choose(start, time_ns, now_ns))
        start.note(time_ns, now_ns)
        return start.place

    def alone(self, ident: int | str, peer: str, now_ns: int) -> Start | None:
        """Return this start if it was heard last, all others have ended, and the host has no other name; else None."""
        starts = self._starts
        if not starts or len(self.names) != 1:
            return None
        start = starts[-1]
        if start.ident != ident or start.place != 0 or (peer and start.peer != peer):
            return None
        if len(starts) > 1 and any(other.is_live(now_ns) for other in starts[:-1]):
            return None
        return start

    def _start(self, ident: int | str, peer: str, place: int) -> Start:
        """Return the start of an agent; a new one is at this place."""
        for start in reversed(self._starts):
            if start.ident == ident and (start.peer == peer or not start.peer or not peer):
                start.peer = start.peer or peer
                return start
        self._starts.append(Start(ident, peer, place))
        del self._starts[:-MAX_STARTS]
        return self._starts[-1]

    def _choose(self, start: Start, time_ns: int, now_ns: int) -> int:
        """Return the start's place, or a lower one of an ended agent; for a new start the lowest free one."""
        others = [one for one in self._starts if one is not start and one.is_live(now_ns)]
        is_new = start.place < 0
        for place in range(MOST):
            there = [one for one in others if one.place == place]
            if there and not is_new and place != start.place:
                continue  # in use by another agent
            first, last = start.more(place, time_ns)
            spans = [one.spans[place] for one in others if place in one.spans]
            if all(last < low or high < first for low, high in spans) and not any(
                _yields(start, one, is_new) for one in there
            ):
                return place
        return MOST - 1

    def live(self, now_ns: int) -> set[int | str]:
        """Return the starts heard within the last minute or so."""
        return {start.ident for start in self._starts if start.is_live(now_ns)}

    def live_names(self, now_ns: int) -> list[str]:
        """Return the names of the agents heard within the last minute or so."""
        places = sorted({start.place for start in self._starts if start.is_live(now_ns)})
        return [name_of(self.names[0], place) for place in places]

    def state(self) -> list[list[Any]]:
        """Return the state for `restored`."""
        return [
            [start.ident, start.peer, start.place, [[place, *span] for place, span in start.spans.items()]]
            for start in self._starts
        ]

    @classmethod
    def restored(cls, host: str, state: Sequence[Sequence[Any]], now_ns: int) -> Namesakes:
        """Return the namesakes of a `state`, all heard just now; ValueError or TypeError if the state is malformed."""
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
        """Note a batch stored at this place before a restart."""
        start = self._start(ident, "", place=0)
        start.enter(place)
        start.note(time_ns, now_ns)


def _yields(start: Start, other: Start, is_new: bool) -> bool:
    """Return whether a start leaves the name to another one heard under it, regardless of their samples' times."""
    if isinstance(start.ident, str) and isinstance(other.ident, int):
        return True  # an agent of Colmet 0.6, next to one with numbered batches
    if isinstance(start.ident, int) and isinstance(other.ident, str):
        return False
    return is_new and bool(start.peer and other.peer and start.peer != other.peer)
