"""Totals of jobs that survive the agent: what is packed is unpacked, and nothing else is."""

import numpy as np
import pytest

from colmet.node.accounting.accumulator import KeptJob, pack_totals, unpack_totals
from colmet.node.kernel.taskstats import FIELDS

WIDTH = len(FIELDS)


def kept(tasks, floor):
    numbers = np.arange(tasks * WIDTH, dtype=np.int64).reshape(tasks, WIDTH)
    return KeptJob(
        identity="/oar/bob_7 42",
        sums=np.ones((2, WIDTH), dtype=np.int64),
        keys=np.arange(10, 10 + tasks, dtype=np.int64),
        values=numbers,
        excess=np.full((tasks, 4), 9, dtype=np.int64),
        floor=np.full(WIDTH, 3, dtype=np.int64) if floor else None,
        beyond_ns=5,
        ended=6,
    )


def test_jobs_are_unpacked_as_they_were_packed():
    jobs = {7: kept(3, floor=True), 8: kept(0, floor=False), 9: kept(2, floor=False)}
    found = unpack_totals(pack_totals(jobs, FIELDS, 4), FIELDS, 4)
    assert list(found) == [7, 8, 9]
    for job_id, job in jobs.items():
        for name, value in job._asdict().items():
            assert np.array_equal(getattr(found[job_id], name), value), name


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "struct.error|error: unpack"),
        (b"\1", "unpack"),
        (b"\2\0\0\0[]", "TypeError"),
        (b"\2\0\0\0{}", "KeyError: 'fields'"),
        (pack_totals({7: kept(3, floor=False)}, FIELDS, 4)[:-1], "buffer"),
        (pack_totals({7: kept(3, floor=False)}, FIELDS, 5), "other waits"),
    ],
)
def test_anything_else_is_a_value_error(data, text):
    with pytest.raises(ValueError, match=text):
        unpack_totals(data, FIELDS, 4)
