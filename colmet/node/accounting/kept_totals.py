"""The form of totals of jobs kept across a restart of the agent.

::

    length of the head, 4 bytes | head, JSON: fields, schema, jobs, waits | arrays of 64-bit integers, job by job:
        floor (1 row, if present), sums (2 rows), keys of tasks, values of tasks (a row each)
    and at the end, job by job: the dropped waits of its tasks (a row each)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from colmet.common.tables.tasks import TASKSTATS as SCHEMA
from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel.taskstats import FIELDS

_HEAD = struct.Struct("<I")
# Digests of the tables of versions that named no fields in the head; all of them kept `FIELDS`, in this order.
FORMER_SCHEMAS = ("dc5b7aa6821819227d95fce5c7ea935e", "a6e180920285c1b54a301e90c9dccbb4")


class KeptJob(NamedTuple):
    """State of one job in the agent: see `Accumulator.keep` and `restore`."""

    identity: str  # of the job, see `Job.identity`
    sums: Ints  # shape (2, fields)
    keys: Ints  # its tasks, shape (n,)
    values: Ints  # their values, shape (n, fields)
    excess: Ints  # their dropped waits, shape (n, waits), see `PlausibleWaits.excess`; not packed without waits
    floor: Ints | None  # lower bounds of the counters, shape (fields,)
    beyond_ns: int  # CPU time in no record
    ended: int  # number of its ended tasks


def pack(jobs: Mapping[int, KeptJob], waits: int) -> bytes:
    """Return the bytes to keep, of jobs by their ids.

    Args:
        jobs: the jobs.
        waits: number of columns of `KeptJob.excess`.
    """
    head, arrays, excess = [], [], []
    for job_id, job in jobs.items():
        if job.floor is not None:
            arrays.append(job.floor)
        arrays += [job.sums, job.keys, job.values]
        excess.append(job.excess)
        has_floor = job.floor is not None
        one = {"job": job_id, "identity": job.identity, "tasks": len(job.keys), "floor": has_floor}
        head.append({**one, "beyond": job.beyond_ns, "ended": job.ended})
    # an earlier version reads the schema alone
    document = {"fields": FIELDS, "schema": SCHEMA.digest.hex(), "jobs": head, "waits": waits}
    text = json.dumps(document).encode()
    arrays += excess if waits else []
    return b"".join([_HEAD.pack(len(text)), text, *[np.ascontiguousarray(array).data for array in arrays]])


def unpack(data: bytes, waits: int) -> dict[int, KeptJob]:
    """Return the jobs given to `pack`; ValueError if another form, or of another version of Colmet."""
    try:
        return _unpack(data, waits)
    except (KeyError, TypeError, OverflowError, struct.error) as err:
        raise ValueError(f"{type(err).__name__}: {err}") from err


def _unpack(data: bytes, waits: int) -> dict[int, KeptJob]:
    (length,) = _HEAD.unpack_from(data)
    head = json.loads(data[_HEAD.size : _HEAD.size + length])
    if head["fields"] != list(FIELDS) if "fields" in head else head["schema"] not in FORMER_SCHEMAS:
        raise ValueError("other columns")
    width, kept_waits, place = len(FIELDS), int(head.get("waits", 0)), _HEAD.size + length
    if kept_waits not in (0, waits):
        raise ValueError("other waits")

    def take(rows: int, columns: int) -> Ints:
        nonlocal place
        array = np.frombuffer(data, "<i8", rows * columns, place).reshape(rows, columns)
        place += array.nbytes
        return array.astype(np.int64)

    jobs = {}
    for one in head["jobs"]:
        floor = take(1, width)[0] if one["floor"] else None
        sums, keys, values = take(2, width), take(one["tasks"], 1)[:, 0], take(one["tasks"], width)
        none = np.zeros((len(keys), waits), dtype=np.int64)
        counts = int(one["beyond"]), int(one.get("ended", 0))  # the first versions did not count tasks
        jobs[int(one["job"])] = KeptJob(str(one["identity"]), sums, keys, values, none, floor, *counts)
    for job_id, job in jobs.items() if kept_waits else ():
        jobs[job_id] = job._replace(excess=take(len(job.keys), waits))
    return jobs
