"""Shared by tests: expected, record, stored."""

from __future__ import annotations

import h5py

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5 import library
from colmet.common.schema import Batch, Field, Schema, Table

tables = library.tables


TIME_S = 1_700_000_000


def schema(*names):
    return Schema("site_default", "job", [Field(name, "none", "gauge") for name in names])


NARROW, WIDE, OTHER = schema("number"), schema("number", "more"), Schema("o", "job", [Field("number", "none", "gauge")])


def record(number):
    """The journal's record: it can be made again at any time.

    Jobs come and go; from record 30 on some nodes send more columns, so tables that are there are rebuilt.
    """
    wide = number >= 30 and number % 3 == 0
    parts = []
    for one in (WIDE if wide else NARROW, OTHER)[: 1 + number % 2]:
        rows = one.empty_rows(3)
        rows["job_id"] = [1, 100 + number // 20, 3 + number % 4]
        rows["number"] = number
        parts.append(Table(one, TIME_S * 10**9, rows))
    received_ns = (TIME_S + number) * 10**9  # one a second
    return JournalRecord(number, received_ns, (Batch("node", 1, number, TIME_S * 10**9, (1,), tuple(parts)),))


def expected(end):
    """How often each (job, table, number) is to be there: once."""
    found = []
    for number in range(end):
        for table in record(number).batches[0].tables:
            found += [(int(job), table.schema.name, number) for job in table.rows["job_id"]]
    return sorted(found)


def stored(folder):
    """All that is in the files: as PyTables and as h5py read them, which have to agree."""
    found, again = [], []
    for path in sorted(folder.glob("x*.hdf5")):
        with tables.open_file(str(path)) as file:
            for table in file.walk_nodes("/", "Table"):
                rows = table.read()
                assert (rows["metric_backend"] == table.name.encode()).all()
                found += [(int(job), table.name, int(n)) for job, n in zip(rows["job_id"], rows["number"])]
        with h5py.File(path) as file:
            for group in file.values():
                for name, data in group.items():
                    again += [(int(job), name, int(n)) for job, n in zip(data["job_id"], data["number"])]
    assert sorted(found) == sorted(again)
    return sorted(found)
