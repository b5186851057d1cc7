"""Shared by tests: COLLECTOR, NODE, changed."""

from __future__ import annotations

import json

BACKEND = {
    **{"name": "taskstats", "on": True, "why": "", "rows": 1234, "failures": 0, "error": "", "overruns": 0},
    **{"cpu_s": 1.5, "wall_s": 2.0, "counters": {}, "last_rows_age_s": 1.2},
}


NODE = {
    **{"daemon": "node", "version": "1.0", "host": "node-7", "pid": 12, "uptime_s": 7200.0, "last_tick_age_s": 1.2},
    **{"period_s": 5.0, "tick_s": 0.012, "cpu_s": 36.0},
    "agent": {"ticks": 1440, "overruns": 0, "jobs": 3, "jobs_started": 1200, "batches_dropped": 0},
    "backends": [BACKEND],
    "behind_s": 0.0,
    "collectors": [
        {
            "uri": "tcp://head:5556",
            "there": True,
            "state": "there",
            "since_s": 7199.0,
            "version": "1.0",
            "durable": True,
        }
    ],
    "spool": {"sent": 1440, "acknowledged": 1439, "held": 1, "dropped": 0},
    "control": {"requests": 7},
    "last_hour": {"overruns": 0, "dropped": 0, "jobs_without_rows": 2},
}


SENDER = {
    **{"name": "node-1", "batches": 5, "rows": 9, "missing": 0, "duplicates": 0, "rejects": 0, "skipped": 0},
    **{"seen_age_s": 1.0, "lag_s": 0.01, "dialect": "v1", "version": "", "silent": False, "gone": False},
    **{"foreign": 0, "limited": 0},
}


OUTPUT = {
    **{"name": "hdf5", "available": True, "why": "", "away_s": 0.0, "behind_s": 10.0, "written": 123456, "waiting": 3},
    **{"lost": 0, "dropped": 0, "failures": 0, "all_failures": 0},
}


COLLECTOR = {
    **{"daemon": "collector", "version": "1.0", "host": "head", "pid": 12, "uptime_s": 90000.0},
    "received": {
        **{"batches": 5000, "rows": 9, "missing": 0, "duplicates": 0, "rejects": 0, "skipped": 0, "dialects": {}},
        **{"foreign": 0, "limited": 0, "forgotten": 0},
    },
    "senders": {
        **{"count": 800, "heard": 800, "silent": 0, "gone": 0, "lag_median_s": 0.01, "lag_max_s": 1.0},
        "worst": [SENDER],
    },
    "outputs": [OUTPUT],
    "journal": {"directory": "/var/j", "why": "", "full": False, "bytes": 3 << 20},
    "last_hour": {"missing_batches": 0},
}


def changed(status, path, value):
    """A copy with one value changed: "outputs.0.why"."""
    copy = json.loads(json.dumps(status))
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = copy
    for key in way:
        place = place[key]
    place[last] = value
    return copy
