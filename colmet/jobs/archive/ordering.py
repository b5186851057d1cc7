"""The order of batches: after an outage a node sends new batches at once, and missing ones meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from colmet.common.schema import Batch

HOLD_S = 60  # longest time by reception that a batch waits for the ones before it
MOST_BYTES = 64 << 20  # of waiting batches
FIRST_SEQ = 1  # of an agent's first batch
FEW = 1000  # a new host whose first batch has a later number has sent the others before, or to no collector


class Arrival(NamedTuple):
    """A batch, and where it was received."""

    batch: Batch
    seen: int  # time of reception, seconds since 1970
    number: int  # of its record in the journal
    place: int  # in that record


class Ordering:
    """Puts the batches of each agent in the order of their numbers, if missing ones arrive within `HOLD_S`.

    Attributes:
        next: of each host, the epoch of its present agent and the number of the next batch.
        held: batches that wait, by host and number.
    """

    def __init__(self) -> None:
        self.next: dict[str, tuple[int, int]] = {}
        self.held: dict[str, dict[int, Arrival]] = {}
        self._bytes = 0

    def follows(self, batch: Batch) -> bool:
        """Return whether a batch is the next one of its host, and no other waits; if so, the one after it is next."""
        if self.next.get(batch.host) != (batch.epoch, batch.seq) or batch.seq is None or batch.host in self.held:
            return False
        self.next[batch.host] = batch.epoch or 0, batch.seq + 1
        return True

    def put(self, arrival: Arrival) -> Iterator[Arrival]:
        """Yield the batches that are next, now that this one has arrived."""
        batch = arrival.batch
        if batch.epoch is None or batch.seq is None:
            yield arrival
            return
        epoch, due = self.next.get(batch.host, (batch.epoch, batch.seq if batch.seq > FEW else FIRST_SEQ))
        if batch.epoch > epoch:
            yield from self.release(batch.host)
            epoch, due = batch.epoch, FIRST_SEQ
        if batch.epoch < epoch or batch.seq < due:
            yield arrival
            return
        if batch.seq > due:
            self.next[batch.host] = epoch, due
            self.held.setdefault(batch.host, {})[batch.seq] = arrival
            self._bytes += batch.size_bytes
            if self._bytes > MOST_BYTES:
                for host in list(self.held):
                    yield from self.release(host)
            return
        yield arrival
        due += 1
        waiting = self.held.get(batch.host)
        if waiting:
            while due in waiting:
                following = waiting.pop(due)
                self._bytes -= following.batch.size_bytes
                yield following
                due += 1
            if not waiting:
                del self.held[batch.host]
        self.next[batch.host] = epoch, due

    def expired(self, now: int) -> Iterator[Arrival]:
        """Yield the batches of hosts with one that has waited too long."""
        for host, waiting in list(self.held.items()):
            if min([one.seen for one in waiting.values()]) < now - HOLD_S:
                yield from self.release(host)

    def release(self, host: str) -> Iterator[Arrival]:
        """Yield all waiting batches of a host: the missing ones are given up."""
        waiting = self.held.pop(host, {})
        for seq in sorted(waiting):
            arrival = waiting[seq]
            self._bytes -= arrival.batch.size_bytes
            self.next[host] = arrival.batch.epoch or 0, seq + 1
            yield arrival

    def waiting(self) -> list[Arrival]:
        """Return all waiting batches."""
        return [one for some in self.held.values() for one in some.values()]

    def count(self) -> int:
        """Return the number of waiting batches; also for a thread that does not put any."""
        return sum(map(len, list(self.held.values())))

    def restore(self, next_of: dict[str, tuple[int, int]], waiting: list[Arrival]) -> None:
        """Restore a former state."""
        self.next, self.held, self._bytes = dict(next_of), {}, 0
        for one in waiting:
            self.held.setdefault(one.batch.host, {})[one.batch.seq or 0] = one
            self._bytes += one.batch.size_bytes
