"""The state of the senders, the first record of each segment of the journal."""

from __future__ import annotations

from colmet.collector.ingest.receiver import Receiver

SEEDS = [b'{"node-1": {"1700000000": [0, 9, [[1, 3], [5, 6]]], "1700000001": [1, 2, []]}, "node-2": {"5": [0, 1, []]}}']


def one(data: bytes) -> None:
    """Whatever is in it, the collector starts."""
    receiver = Receiver()
    receiver.restore(data, [])
    receiver.dump_senders()
    assert receiver.report()
