"""Whatever comes in on the port for data: distinguished, then decoded."""

from __future__ import annotations

import fuzz_colmet06
import fuzz_colmet_rs
import fuzz_v1

from colmet.common.errors import WireError
from colmet.common.wire import Decoder

SEEDS = [seed for part in (fuzz_v1, fuzz_colmet06, fuzz_colmet_rs) for seed in part.SEEDS]


def one(data: bytes) -> None:
    """A decoder that has met bad bytes decodes good ones as before."""
    decoder = Decoder()
    try:
        decoded = decoder.decode(data)
    except WireError:
        pass
    else:
        for batch in decoded.batches:
            assert batch.size_bytes > 0 and batch.row_count >= 0
    assert decoder.decode(fuzz_v1.SEEDS[0]).batches[0].row_count == 4
