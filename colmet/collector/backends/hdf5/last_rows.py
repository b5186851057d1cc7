"""Times of the last rows of a file that is no longer written."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from colmet.collector.backends.hdf5.h5table import FORMER_TIMES, Damaged, reading, table_names
from colmet.collector.backends.hdf5.libhdf5 import NotFlatError, OpenFile
from colmet.collector.backends.hdf5.library import opened_library

MAX_TABLES = 256
MAX_ROWS = 256  # at the end of a table
_JOB = re.compile(r"job_([0-9]{1,19})", re.ASCII)


def last_row_s(path: str, report: Callable[[str, str], None]) -> int:
    """Return the latest time among the last rows of a file, in seconds since 1970; 0 without a row.

    The tables of nodes are read first, then those of the latest jobs. The call is meant for a process of its own.

    Args:
        path: of the file.
        report: progress callback, as in `repair`.

    Raises:
        Damaged: it cannot be read, or has anything that colmet-collector does not write.
        OutputUnavailable: a system error prevents reading it.
    """
    latest = 0
    with reading(path), opened_library(path, "r") as file:
        for name in file.root._v_children:
            if name == FORMER_TIMES and name in file.root._v_leaves:
                continue
            if not _JOB.fullmatch(name) or name not in file.root._v_groups:
                raise Damaged(f"{path}: has /{name:.100}, which colmet-collector does not write")
        library = OpenFile(file.root._v_objectid)
        for name in islice(table_names(file, _order), MAX_TABLES):
            report("at", name)
            try:
                table = library.find(name.encode())
            except NotFlatError:
                table = None
            if table is None or not {"timestamp", "hostname"} <= set(table.form.dtype.names or ()):
                raise Damaged(f"{path}: has {name:.100}, which colmet-collector does not write")
            if table.rows:
                last = table.read(max(0, table.rows - MAX_ROWS), table.rows)
                latest = max(latest, int(last["timestamp"].max()))
    return latest


def _order(group: str) -> tuple[bool, int]:
    job = _JOB.fullmatch(group)
    number = int(job[1]) if job else 0
    return number != 0, -number
