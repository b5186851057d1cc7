"""How much is taken from one sender: nobody who may send has all of the collector."""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from collections.abc import Callable

from colmet.common import cli

BURST_S = 10.0  # what may come at once: so much as in this time
MAX_SENDERS = 16384  # that are remembered; those that were heard longest ago are forgotten, and may send a burst again
# Without keys a sender is an address, behind which many nodes may be: containers, or a gateway.
NODES_OF_AN_ADDRESS = 20


class RateLimit:
    """Messages and bytes in a second, for each sender: two token buckets.

    Args:
        per_s: messages; 0 is no limit.
        bytes_per_s: of messages; 0 is no limit.
        monotonic: a clock, in seconds.
    """

    def __init__(self, per_s: float, bytes_per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit(per_s, bytes_per_s)
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float, float]] = OrderedDict()  # messages, bytes used; when

    def limit(self, per_s: float, bytes_per_s: float) -> None:
        """Admit so much from now on; 0 is no limit."""
        self._per_s = per_s or float("inf")
        self._bytes_per_s = bytes_per_s or float("inf")

    def admits(self, sender: str, size: int) -> bool:
        """Whether a message may still be taken from a sender; it counts if so."""
        now = self._monotonic()
        count, total, before = self._buckets.pop(sender, (0.0, 0.0, now))
        count = max(0.0, count - (now - before) * self._per_s) + 1
        total = max(0.0, total - (now - before) * self._bytes_per_s) + size
        admitted = count <= self._per_s * BURST_S and total <= self._bytes_per_s * BURST_S
        self._buckets[sender] = (count, total, now) if admitted else (count - 1, total - size, now)
        if len(self._buckets) > MAX_SENDERS:
            self._buckets.popitem(last=False)
        return admitted


class Rates:
    """The limits of all senders, those with keys and those without.

    Args:
        per_s: messages of one node in a second; 0 is no limit.
        bytes_per_s: the same in bytes.
        monotonic: a clock, in seconds.
    """

    def __init__(
        self, per_s: float = 0, bytes_per_s: float = 0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._bytes_per_s = per_s, bytes_per_s
        self._users = RateLimit(per_s, bytes_per_s, monotonic)
        self._addresses = RateLimit(per_s * NODES_OF_AN_ADDRESS, bytes_per_s * NODES_OF_AN_ADDRESS, monotonic)

    def limit(self, per_s: float | None = None, bytes_per_s: float | None = None) -> None:
        """Admit so much of one node from now on; 0 is no limit, None leaves that as it is."""
        self._per_s = self._per_s if per_s is None else per_s
        self._bytes_per_s = self._bytes_per_s if bytes_per_s is None else bytes_per_s
        self._users.limit(self._per_s, self._bytes_per_s)
        self._addresses.limit(self._per_s * NODES_OF_AN_ADDRESS, self._bytes_per_s * NODES_OF_AN_ADDRESS)

    def admits(self, user: str, peer: str, size: int) -> bool:
        """Whether a message of so many bytes may still be taken from a user or, without keys, from an address."""
        return self._users.admits(user, size) if user else self._addresses.admits(peer, size)


def add_options(parser: cli.Options) -> None:
    """The options of the collector."""
    parser.add_argument(
        "--max-rate",
        metavar="N",
        type=cli.whole_number(0),
        default=1000,
        help="messages a second that are taken from one node; what is beyond is left out and counted, and nodes "
        "that wait for acknowledgements send it again. Without CURVE it is for an address, behind which there may "
        f"be several nodes: {NODES_OF_AN_ADDRESS} times as many. 0 is no limit (default: %(default)s)",
    )
    parser.add_argument(
        "--max-byte-rate",
        metavar="SIZE",
        type=_size_or_none,
        default=32 << 20,
        help="the same in bytes a second, such as 32M; 0 is no limit (default: 32M)",
    )


def _size_or_none(text: str) -> int:
    return 0 if text.strip() == "0" else cli.size_bytes(text)


def from_options(options: argparse.Namespace) -> Rates:
    """What the command line asks for."""
    return Rates(options.max_rate, options.max_byte_rate)
