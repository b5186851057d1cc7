"""Rate limits: the share of the collector that one sender may use."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from colmet.common.daemon.pacing import TokenBucket

# Of one node in a second. A node sends a few messages a second at most, of some 10 kB.
MESSAGES_PER_S, BYTES_PER_S = 1000.0, float(32 << 20)
BURST_S = 10.0  # largest burst: the admitted amount of this time
MAX_SENDERS = 16384  # in memory; those silent for longest are forgotten, and may send a burst again
# Without keys a sender is an address, possibly of many nodes: containers, or a gateway.
NODES_OF_AN_ADDRESS = 20
# Of the receiving thread's time. A message costs 0.1 ms, so a node at its full message rate needs 0.1 s a second.
WORK_S, WORK_OF_AN_ADDRESS_S = 0.25, 0.5
# New fields of descriptions. All nodes of one version of Colmet have the same few hundred, and the first of them has
# them parsed for all. Those behind one address need no more.
NEW_FIELDS_PER_S, NEW_FIELDS_AT_ONCE = 16.0, 8192.0
# New hosts of an address; a host with a key is exempt.
NEW_HOSTS_PER_S, NEW_HOSTS_AT_ONCE = 1.0, 4096.0
INFINITE = float("inf")


class Budget:
    """A limit on the use per second of each sender: one token bucket for each.

    Args:
        per_s: units for one node in a second.
        at_once: burst of one node after a quiet time.
    """

    def __init__(self, per_s: float, at_once: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit(per_s, at_once)
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def limit(self, per_s: float, at_once: float) -> None:
        """Set the limits of one node; infinity is no limit."""
        self._per_s, self.at_once = per_s, at_once

    def left(self, sender: str, nodes: float = 1) -> float:
        """Return the units left now for a sender counted as `nodes` nodes; below 0 after overuse."""
        bucket = self._buckets.get(sender)
        if bucket is None:
            return nodes * self.at_once
        bucket.limit(self._per_s * nodes, self.at_once * nodes)
        return bucket.left()

    def use(self, sender: str, amount: float, nodes: float = 1) -> None:
        """Count units used by a sender."""
        bucket = self._buckets.get(sender)
        if bucket is None:
            bucket = self._buckets[sender] = TokenBucket(self._per_s, self.at_once, self._monotonic)
        bucket.limit(self._per_s * nodes, self.at_once * nodes)
        bucket.use(amount)
        self._buckets.move_to_end(sender)
        if len(self._buckets) > MAX_SENDERS:
            self._buckets.popitem(last=False)


class SenderUse:
    """The use of one sender that is not available again yet; `sender` is its name, `nodes` the nodes behind it."""

    __slots__ = ("as_of", "bytes", "messages", "nodes", "sender", "work_s")

    def __init__(self, sender: str, nodes: int, now: float) -> None:
        self.sender = sender
        self.nodes = nodes
        self.as_of = now
        self.messages = self.bytes = self.work_s = 0.0

    def pass_time(self, now: float, messages: float, size: float, work_s: float) -> None:
        """Reduce the use by the amounts of a second, for each second since the last call."""
        passed = now - self.as_of
        if passed:
            self.as_of = now
        if passed > 0:
            # `max` costs more than all the rest
            left = self.messages - passed * messages
            self.messages = left if left > 0 else 0.0
            left = self.bytes - passed * size
            self.bytes = left if left > 0 else 0.0
            left = self.work_s - passed * work_s
            self.work_s = left if left > 0 else 0.0


class RateLimit:
    """The limits of all senders. A sender without a key is an address, possibly of several nodes.

    Args:
        per_s: messages of one node in a second; 0 is no limit.
        bytes_per_s: the same in bytes.

    Attributes:
        limited: messages beyond each limit, by its name.
    """

    def __init__(
        self, per_s: float = 0, bytes_per_s: float = 0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._per_s, self._bytes_per_s = per_s or INFINITE, bytes_per_s or INFINITE
        self._used: OrderedDict[str, SenderUse] = OrderedDict()
        self._fields = Budget(NEW_FIELDS_PER_S, NEW_FIELDS_AT_ONCE, monotonic)
        self._hosts = Budget(NEW_HOSTS_PER_S, NEW_HOSTS_AT_ONCE, monotonic)
        self.limited = dict.fromkeys(("messages", "bytes", "work", "fields", "tables", "hosts", "journal"), 0)
        self._has_room: Callable[[str, int], bool] = lambda sender, size: True

    def store_in(self, has_room: Callable[[str, int], bool]) -> None:
        """Admit a message only if `has_room` returns True for its sender and size."""
        self._has_room = has_room

    def admit(self, user: str, peer: str, size: int) -> SenderUse | None:
        """Return the use of a sender if a message of this size is admitted, None otherwise."""
        now = self._monotonic()
        sender, nodes = sender_of(user, peer)
        used = self._used.get(sender)
        if used is None:
            used = self._used[sender] = SenderUse(sender, nodes, now)
            if len(self._used) > MAX_SENDERS:  # those silent for longest are forgotten
                self._used.popitem(last=False)
        else:
            self._used.move_to_end(sender)
        messages, size_s = self._per_s * nodes, self._bytes_per_s * nodes
        work_s = WORK_S if nodes == 1 else WORK_OF_AN_ADDRESS_S
        used.pass_time(now, messages, size_s, work_s)
        if messages * BURST_S - used.messages < 1:
            beyond = "messages"
        elif size_s * BURST_S - used.bytes < size:
            beyond = "bytes"
        elif work_s * BURST_S - used.work_s <= 0:
            beyond = "work"
        elif not self._has_room(sender, size):
            beyond = "journal"
        else:
            used.messages += 1
            used.bytes += size
            return used
        self.limited[beyond] += 1
        return None

    def admits_host(self, peer: str) -> bool:
        """Return whether one more host is admitted from an address."""
        admitted = self._hosts.left(peer) >= 1
        if admitted:
            self._hosts.use(peer, 1)
        return admitted

    def new_fields(self, sender: str) -> int:
        """Return the number of new fields that may be parsed for a sender now."""
        return max(0, int(self._fields.left(sender)))

    def parsed(self, sender: str, new_fields: int) -> None:
        """Charge a sender for parsed fields of descriptions."""
        self._fields.use(sender, new_fields)


def sender_of(user: str, peer: str) -> tuple[str, int]:
    """Return the name of a sender, a user or an address, and the number of nodes behind it."""
    return (user, 1) if user else (f"[{peer}]", NODES_OF_AN_ADDRESS)
