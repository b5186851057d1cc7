"""Updates a file of an earlier Colmet: it gets the columns and triggers that it lacks, and keeps all its values."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing


def update(database: sqlite3.Connection, statements: Sequence[str], derived: str, refill: str) -> bool:
    """Create what is missing of an archive, within the caller's transaction; return whether tables got columns.

    Args:
        database: the file.
        statements: of all tables, indexes and triggers, with "IF NOT EXISTS".
        derived: name of the table of derived values; the names of its triggers begin so, others are of other parts.
        refill: the statement that fills it; run if it gets columns or other triggers.
    """
    with closing(sqlite3.connect(":memory:")) as model:
        for statement in statements:
            model.execute(statement)
        triggers = _triggers(model)
        tables = {name: _columns(model, name) for name in _names(model, "table")}
    is_stale = is_earlier = False
    for table, columns in tables.items():
        before = _columns(database, table)
        for name in columns.keys() - before.keys() if before else ():
            database.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {columns[name]}')
            is_stale |= table == derived
            is_earlier = True
    for name, text in _triggers(database).items():
        if name.startswith(f"{derived}_") and triggers.get(name) != text:
            database.execute(f"DROP TRIGGER {name}")
            is_stale = True
    for statement in statements:
        database.execute(statement)
    if is_stale:
        database.execute(refill)
    return is_earlier


def _names(database: sqlite3.Connection, kind: str) -> list[str]:
    return [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,))]


def _triggers(database: sqlite3.Connection) -> dict[str, str]:
    return {row[0]: row[1] for row in database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")}


def _columns(database: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the kinds of a table's columns by name; empty without the table."""
    return {row[1]: row[2] for row in database.execute(f"PRAGMA table_info({table})")}
