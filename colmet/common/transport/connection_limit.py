"""Limits on the number of connections, so that descriptors remain for files and for later peers.

libzmq accepts each connection at once. Excess connections are closed here; if they come faster than that, the kernel
stops accepting for a moment. Nothing here needs a descriptor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Sequence

from colmet.common.runtime.logs import powers_of_ten
from colmet.common.transport.connections import Connection, Connections

log = logging.getLogger(__name__)

SPARE_SHARE = 1 / 8  # of the descriptors of this process: for files, and for later peers
LEAST_SPARE = 64  # descriptors; at a very low limit, half the limit
LEAST_SHARE = 1 / 4  # of the descriptors, for connections, however many files are open
UNHEARD_SHARE = 1 / 8  # of the descriptors, for connections of one address without a message
LEAST_UNHEARD = 32
MANY = 4  # connections of one address: those of a node or two, not closed in favour of others
STEP_SHARE = 1 / 32  # of the descriptors: closed at once beyond the excess, as each look costs time
PAUSE_S = 0.1
PAUSE_CLOSED = 32  # connections closed at one look, for a pause
PAUSE_SHARE = 1 / 4  # of the spare descriptors in use, for a pause


def spare(limit: int) -> int:
    """Return the number of descriptors, of `limit`, reserved for other uses than connections."""
    return max(int(limit * SPARE_SHARE), min(LEAST_SPARE, limit // 2))


class Crowd:
    """The connections to all ports of an authenticator. Used by its thread.

    `unheard` has, by address, the connections without a message; `pauses` counts the pauses in accepting connections.
    """

    def __init__(self) -> None:
        self.unheard: Counter[str] = Counter()
        self.pauses = 0
        self._others = 64  # descriptors other than connections
        self._paused_until = 0.0
        self._cannot_pause = 0

    @property
    def pause_left_s(self) -> float | None:
        """Return the seconds until connections are accepted again; None outside a pause."""
        return max(0.0, self._paused_until - time.monotonic()) if self._paused_until else None

    def count_others(self, ports: Sequence[Connections]) -> None:
        """Count the descriptors other than connections; without a free one to look with, keep the former count."""
        with contextlib.suppress(OSError):
            found = len(os.listdir("/proc/self/fd")) - 1
            self._others = max(0, found - sum(len(port.known) for port in ports))

    def look(self, ports: Sequence[Connections]) -> None:
        """Close excess connections; start a pause if they come too fast, and end a pause."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        closed = self._close_unheard(ports, max(LEAST_UNHEARD, int(limit * UNHEARD_SHARE)))
        allowed = max(int(limit * LEAST_SHARE), limit - spare(limit) - self._others)
        beyond = closed + sum(len(port.known) for port in ports) - allowed  # those just closed still have descriptors
        if beyond > closed:
            closed += self._close_beyond(ports, beyond - closed + int(limit * STEP_SHARE))
        if beyond > spare(limit) * PAUSE_SHARE or closed >= PAUSE_CLOSED:
            self._pause(ports)
        elif self._paused_until and time.monotonic() >= self._paused_until:
            self._paused_until = 0.0
            for port in ports:
                with contextlib.suppress(OSError):
                    port.admit(True)

    def _close_unheard(self, ports: Sequence[Connections], most: int) -> int:
        """Close connections of addresses with more than `most` without a message, the oldest first."""
        fresh = {peer for port in ports for peer in port.fresh}
        for port in ports:
            port.fresh.clear()
        if all(self.unheard[peer] <= most for peer in fresh):
            return 0
        found = _listened(ports)
        many = {peer: self.unheard[peer] for peer in fresh if self.unheard[peer] > most}
        found = [entry for entry in found if not entry[0].heard and entry[0].peer in many]
        left, closed = int(most * (1 - STEP_SHARE * 8)), 0
        for one, port, descriptor in sorted(found, key=lambda entry: entry[0].number):
            if many[one.peer] > left:
                many[one.peer] -= 1
                closed += 1
                port.close(descriptor, "no message, and there are too many connections of this address")
        return closed

    def _close_beyond(self, ports: Sequence[Connections], beyond: int) -> int:
        """Close this many connections, or as many as may be closed; return their number.

        Up to `MANY` of an address with a message stay. Of the others, addresses with the most connections lose theirs
        first, those without a message before those with one, older ones before younger ones: a new peer has time to
        send.
        """
        everything = _listened(ports)
        everything.sort(key=lambda entry: (not entry[0].heard, entry[0].number * (1 if entry[0].heard else -1)))
        trusted = {one.peer for one, _, _ in everything if one.heard}
        ranks: Counter[str] = Counter()
        found = []
        for one, port, descriptor in everything:
            ranks[one.peer] += 1
            rank = ranks[one.peer]
            if rank > MANY or one.peer not in trusted:
                found.append((one.heard, -max(0, rank - MANY), one.number, port, descriptor))
        found.sort(key=lambda entry: entry[:3])
        for heard, _, _, port, descriptor in found[:beyond]:
            what = "some messages, over" if heard else "no message, and there are"
            port.close(descriptor, f"{what} too many connections")
        return min(beyond, len(found))

    def _pause(self, ports: Sequence[Connections]) -> None:
        """Stop accepting connections for a moment."""
        if not self._paused_until:
            self.pauses += 1
            if powers_of_ten(self.pauses):
                log.warning("too many connections, none is accepted for a moment pauses=%d", self.pauses)
        self._paused_until = time.monotonic() + PAUSE_S
        for port in ports:
            try:
                port.admit(False)
            except OSError as err:
                self._cannot_pause += 1
                if powers_of_ten(self._cannot_pause):
                    log.error("connections cannot be paused: %s failures=%d", err, self._cannot_pause)


def _listened(ports: Sequence[Connections]) -> list[tuple[Connection, Connections, int]]:
    """Return all connections with their port and descriptor, marked if they have been heard."""
    for port in ports:
        port.listen()
    return [(one, port, descriptor) for port in ports for descriptor, one in port.known.items()]
