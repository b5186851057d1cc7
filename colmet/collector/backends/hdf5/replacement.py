"""Replacement of a damaged file: from the journal if that has all rows, otherwise from the file's readable rows.

Each step is saved before it starts, and can be repeated after a kill.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from colmet.collector.backends.hdf5.checkpoint import REPLAY, SALVAGE, Checkpoint
from colmet.collector.backends.hdf5.isolated import salvage
from colmet.collector.journal.output_state import OutputState
from colmet.common.runtime.files import sync_directory

log = logging.getLogger(__name__)


class Replaced(NamedTuple):
    """Replacement of a damaged file."""

    checkpoint: Checkpoint  # of the new file
    position: int  # number of the next record to write from the journal
    rows_lost: int  # rows found in neither the file nor the journal


def plan(path: str, saved: Checkpoint, state: OutputState) -> Checkpoint:
    """Return a checkpoint with the plan for replacing the file at `path`."""
    return saved._replace(plan=REPLAY if _can_replay(saved, state) else SALVAGE, aside=_unused(f"{path}.damaged"))


def carry_out(path: str, planned: Checkpoint, state: OutputState) -> Replaced:
    """Carry out the plan, or its remaining steps; the file must be closed.

    Raises:
        OSError: a file cannot be moved.
        OutputUnavailable: the damaged file cannot be read now.
    """
    if planned.plan == REPLAY and planned.first is not None and _can_replay(planned, state):
        return _replay(path, planned.aside, planned.first)
    return _salvage(path, planned, state.position)


def _can_replay(saved: Checkpoint, state: OutputState) -> bool:
    return saved.first is not None and state.oldest <= saved.first


def _replay(path: str, aside: str, first: int) -> Replaced:
    if os.path.lexists(path) and not os.path.lexists(aside):
        os.rename(path, aside)
        sync_directory(os.path.dirname(path))
    log.error(
        "damaged file set aside, all its rows are written again from the journal: path=%s aside=%s; remove the latter "
        "when the new file is complete",
        path,
        aside,
    )
    return Replaced(Checkpoint(path, first=first, tables=0), first, 0)


def _salvage(path: str, planned: Checkpoint, position: int) -> Replaced:
    aside, rows_lost = planned.aside, 0
    if not os.path.lexists(aside):
        try:
            os.link(path, aside)
        except OSError:  # a file system without links
            os.rename(path, aside)
        sync_directory(os.path.dirname(path))
    if not os.path.lexists(path) or os.path.samefile(path, aside):
        rebuilding = f"{path}.rebuilding"
        saved = salvage(aside, rebuilding, path, planned.tables, planned.undo, planned.tails)
        os.replace(rebuilding, path)
        sync_directory(os.path.dirname(path))
        rows_lost = saved.lost_rows
        log.error(
            "damaged file set aside, replaced by what can be read of it: path=%s aside=%s tables=%d rows=%d "
            "tables_lost=%d rows_lost=%d; keep the latter if rows were lost that matter to you, else remove it",
            *(path, aside, saved.tables, saved.rows, saved.lost_tables, saved.lost_rows),
        )
    return Replaced(Checkpoint(path, until=planned.until, places=planned.places), position, rows_lost)


def _unused(path: str) -> str:
    """Return this path, with a number appended if it exists."""
    found, number = path, 0
    while os.path.lexists(found):
        number += 1
        found = f"{path}.{number}"
    return found
