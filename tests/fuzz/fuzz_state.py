"""The file in which an output of the collector remembers how far it is."""

from __future__ import annotations

import json

from colmet.collector.backends.hdf5.checkpoint import Checkpoint
from colmet.collector.journal import output_state

DOCUMENT = {"form": 1, "journal": "0123456789abcdef", "position": 7, "keep_from": 3, "notes": {}}
SEEDS = [
    json.dumps(DOCUMENT).encode(),
    json.dumps({**DOCUMENT, "notes": json.loads(json.dumps(Checkpoint()._asdict()))}).encode(),
]


def one(data: bytes) -> None:
    """It is read as a whole or refused; so are the notes of the output for HDF5 in it."""
    try:
        document = output_state.parse(data)
    except ValueError:
        return
    assert 0 <= document["keep_from"] <= document["position"] < 1 << 63
    assert isinstance(document["journal"], str)
    try:
        Checkpoint.parse(document["notes"])
    except ValueError:
        return
