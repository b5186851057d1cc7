"""What a rebuilt archive keeps of the former one: jobs whose rows are gone, and what the batch system knows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from colmet.jobs.archive.store import TABLES, ArchiveStore, Changes, escaped
from colmet.jobs.columns import BATCH
from colmet.jobs.job_summaries import job_summary, keyed_runs

_OVERLAP = "{a}.start <= {b}.last AND {b}.start <= {a}.last"


_OF_SEVERAL_HOSTS = "SELECT job FROM main.hosts GROUP BY job HAVING count(*) > 1"


class KeptSummaries(NamedTuple):
    """Numbers of what is kept."""

    jobs: int  # whole jobs of the former archive alone
    hosts: int  # summaries of hosts with more samples than there are rows


def keep_former(store: ArchiveStore, path: str) -> KeptSummaries:
    """Add to a new archive what only the former one has.

    A summary of a job on a host is kept if the former one has more samples of it than there are rows now: they have
    been removed. All other summaries are the new ones.
    """
    database = store.database
    database.execute("ATTACH ? AS former", (_uri(path),))
    try:
        kept = _hosts(database)
        mixed = _whole(database)
        for job in mixed:
            keyed = keyed_runs(store.hosts_of(job), store.records_of(job))
            rows = [{**job_summary(run), "start": start} for start, run in keyed.items()]
            store.write(Changes((), rows, {}), None)
        _batch(database)
        store.divide([row["job"] for row in database.execute(_OF_SEVERAL_HOSTS).fetchall()])
        _others(database)
        jobs = int(database.execute("SELECT count(*) FROM temp.alone").fetchone()[0])
    finally:
        database.execute("DETACH former")
    return KeptSummaries(jobs, kept)


def _uri(path: str) -> str:
    if os.access(path, os.W_OK):
        return f"file:{escaped(os.path.abspath(path))}?mode=rw"
    mode = "ro" if os.path.lexists(f"{path}-wal") else "ro&immutable=1"
    return f"file:{escaped(os.path.abspath(path))}?mode={mode}"


def _hosts(database: sqlite3.Connection) -> int:
    """Copy the kept summaries of hosts; return their number."""
    overlap = _OVERLAP.format(a="n", b="o")
    database.execute(
        "CREATE TEMP TABLE kept AS SELECT o.job, o.host, o.start, o.last FROM former.hosts AS o WHERE NOT EXISTS ("
        "SELECT 1 FROM main.hosts AS n WHERE n.job = o.job AND n.host = o.host "
        f"AND {overlap} AND n.rows >= coalesce(o.rows, 0))"
    )
    database.execute("CREATE INDEX temp.kept_key ON kept (job, host)")
    # keys of new summaries of the same runs: of rows that are left of them
    database.execute(
        "CREATE TEMP TABLE less AS SELECT DISTINCT n.job, n.host, n.start FROM main.hosts AS n "
        f"JOIN temp.kept AS o ON n.job = o.job AND n.host = o.host AND {overlap}"
    )
    for table in ("hosts", "host_details", "folds"):
        database.execute(
            f"DELETE FROM main.{table} WHERE (job, host, start) IN (SELECT job, host, start FROM temp.less)"
        )
        _copy(database, table, "(job, host, start) IN (SELECT job, host, start FROM temp.kept)")
    return int(database.execute("SELECT count(*) FROM temp.kept").fetchone()[0])


def _whole(database: sqlite3.Connection) -> list[int]:
    """Copy whole jobs of the former archive alone; return the jobs with summaries of both, to be made again."""
    database.execute(
        "CREATE TEMP TABLE mixed AS SELECT DISTINCT k.job AS job FROM temp.kept AS k WHERE EXISTS ("
        "SELECT 1 FROM main.hosts AS n WHERE n.job = k.job AND NOT EXISTS ("
        "SELECT 1 FROM temp.kept AS o WHERE o.job = n.job AND o.host = n.host AND o.start = n.start))"
    )
    of_kept = "job IN (SELECT job FROM temp.kept)"
    # those that only the batch system knows have no hosts
    database.execute(
        "CREATE TEMP TABLE alone AS SELECT job, start FROM former.jobs AS o WHERE "
        f"({of_kept} AND job NOT IN (SELECT job FROM temp.mixed)) OR NOT EXISTS (SELECT 1 FROM main.hosts AS n "
        "WHERE n.job = o.job AND n.start <= coalesce(o.last, o.ended, o.start) AND o.start <= n.last)"
    )
    for table in ("job_details", "jobs"):
        database.execute(f"DELETE FROM main.{table} WHERE {of_kept}")
        _copy(database, table, "(job, start) IN (SELECT job, start FROM temp.alone)")
    return [row[0] for row in database.execute("SELECT job FROM temp.mixed")]


def _batch(database: sqlite3.Connection) -> None:
    """Give the new summaries of whole jobs what the batch system has reported of them."""
    there = _columns(database, "former", "jobs")
    names = [column.name for column in BATCH if column.name in there]
    if not names:
        return
    listed = ", ".join([f'"{name}"' for name in names])  # of the former one alone: temp.known has none of them
    # `was` is the start of the same run there
    database.execute(
        "CREATE TEMP TABLE known AS SELECT j.job AS job, j.start AS start, (SELECT max(o.start) FROM former.jobs AS o "
        "WHERE o.job = j.job AND o.start <= coalesce(j.last, j.start) AND coalesce(o.last, o.start) >= j.start) AS was "
        "FROM main.jobs AS j WHERE (j.job, j.start) NOT IN (SELECT job, start FROM temp.alone)"
    )
    database.execute("CREATE INDEX temp.known_key ON known (job, start)")
    database.execute(
        f"UPDATE main.jobs SET ({listed}) = (SELECT {listed} FROM former.jobs AS o JOIN temp.known AS k "
        "ON k.job = o.job AND k.was = o.start WHERE k.job = jobs.job AND k.start = jobs.start) "
        "WHERE (job, start) IN (SELECT job, start FROM temp.known WHERE was IS NOT NULL)"
    )


def _others(database: sqlite3.Connection) -> None:
    """Copy the tables of others."""
    tables = database.execute(
        "SELECT name, sql FROM former.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    for name, sql in [(row["name"], row["sql"]) for row in tables]:
        if name not in TABLES:  # those the rebuild has filled
            if not _columns(database, "main", name):
                database.execute(sql)
            _copy(database, name, "1")


def _copy(database: sqlite3.Connection, table: str, condition: str) -> None:
    """Copy rows of the former archive, with the columns that both have."""
    both = _columns(database, "former", table)
    names = ", ".join([f'"{name}"' for name in _columns(database, "main", table) if name in both])
    database.execute(
        f'INSERT OR REPLACE INTO main."{table}" ({names}) SELECT {names} FROM former."{table}" WHERE {condition}'
    )


def _columns(database: sqlite3.Connection, schema: str, table: str) -> Sequence[str]:
    return [row["name"] for row in database.execute(f'PRAGMA {schema}.table_info("{table}")')]
