"""A small archive with jobs of given values, and a configuration of notices."""

from __future__ import annotations

import contextlib
import json
import time
import types

from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.columns import BATCH, HOST_COLUMNS
from colmet.notices import command

NOW = 1_795_608_000  # 2026-11-25 12:00 UTC
HOUR, GIB = 3600, 1 << 30
OPS = "ops@site.org"
MAIL = {"mail_server": "127.0.0.1", "mail_from": "colmet@site.org", "user_address": "%u@site.org"}


def set_clock(monkeypatch, now):
    """Run `colmet notices` at this time."""
    clock = types.SimpleNamespace(time=lambda: float(now), monotonic=time.monotonic)
    monkeypatch.setattr(command, "time", clock)


def job(number=42, age_s=2 * HOUR, **values):
    """A running job of alice that used all of its four cores."""
    start = values.get("start", NOW - age_s)
    wall_s = float(values.pop("wall_s", age_s))
    return {
        **{"job": number, "start": start, "last": NOW - 30, "is_running": 1, "user": "alice", "hosts": 1},
        **{"wall_s": wall_s, "cpus": 4.0, "core_s": 4 * wall_s, "cpu_s": 4 * wall_s, "samples": 100, "rows": 100},
        **values,
    }


def idle(number=42, age_s=2 * HOUR, **values):
    return job(number, age_s, **{"cpu_s": 3.0, **values})


def failed(number=43, ago_s=600, ran_s=90, **values):
    """A job that failed some time ago."""
    start = NOW - ago_s - ran_s
    of_batch = {"state": "failed", "owner": "alice", "started": start, "ended": start + ran_s, "exit_code": 127}
    measured = {"start": start, "wall_s": ran_s, "last": start + ran_s, "is_running": 0}
    return job(number, **{**measured, **of_batch, **values})


def write(path, *jobs, host="node1"):
    """Write summaries: jobs on one host each, unless `on` names several."""
    with contextlib.closing(ArchiveStore(str(path), writable=True)) as store:
        hosts = []
        for one in jobs:
            for name in one.get("on", (host,)):
                row = {name: value for name, value in one.items() if name in HOST_COLUMNS}
                hosts.append({**row, "host": name})
        store.write(Changes(hosts, jobs, {}), None)
        for one in jobs:
            known = {column.name: one[column.name] for column in BATCH if column.name in one}
            if known:
                sets = ", ".join(f'"{name}" = ?' for name in known)
                key = [one["job"], one["start"]]
                store.database.execute(f"UPDATE jobs SET {sets} WHERE job = ? AND start = ?", [*known.values(), *key])
    return str(path)


def settings(path, **values):
    """Write a configuration; names have underscores for dashes."""
    rules = ["idle", "gpu-idle", "memory-high", "metadata", "failed-early"]
    known = {**{"user_rules": rules, "administrator_rules": rules, "administrators": [OPS]}, **values}
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in known.items() if value is not None]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
