"""The account of the senders with which each segment of the journal begins."""

from __future__ import annotations

from colmet.collector.ingest.receiver import Receiver

SEEDS = [b'{"node-1": {"1700000000": [0, 9, [[1, 3], [5, 6]]], "1700000001": [1, 2, []]}, "node-2": {"5": [0, 1, []]}}']


def one(data: bytes) -> None:
    """Whatever is in it, the collector starts."""
    receiver = Receiver()
    receiver.restore(data, [])
    receiver.account()
    assert receiver.report()
