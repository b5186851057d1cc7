"""What node and collector say on the link."""

from __future__ import annotations

from colmet.common.errors import WireError
from colmet.common.wire import link

RANGES = (link.Range(1_700_000_000, 1, 9), link.Range(1_700_000_001, 3, 3))
SEEDS = [
    link.encode(link.Hello("node-1", 1_700_000_001, 4, "1.0", RANGES)),
    link.encode(link.Ack("1.0", 1_700_000_000, True, 3, RANGES)),
    link.encode(link.Request(1, b"\x81\xa7command\xa6status")),
    link.encode(link.Answer(1, b"\x80")),
]


def one(data: bytes) -> None:
    """What was read is said again in the same words."""
    try:
        message = link.decode(data)
    except WireError:
        return
    assert link.decode(link.encode(message)) == message
    if isinstance(message, (link.Hello, link.Ack)):
        ranges = message.held if isinstance(message, link.Hello) else message.ranges
        assert all(0 <= number.first <= number.last for number in ranges)
