"""Columns of several tables: counters of backends, columns of `agent_default`, and those that distinguish runs."""

from __future__ import annotations

from colmet.common.schema import counter, gauge

# Of every backend that measures several things of a kind.
PART_FAILURES = counter(
    *("part_failures", "count"),
    "Unreadable zones, sensors, ports, mounts and values of GPUs; their values are missing.",
    "the backend that measures them",
)
# Of every backend in a thread of its own.
LEFT_OUT = counter("left_out", "count", "Ticks without rows, the measurement before not having ended.", "the agent")
LATE = counter("late", "count", "Measurements that ended after their deadline.", "the agent")
_ASKER = "the backend that asks programs"
COMMANDS = counter("commands", "count", "Programs started.", _ASKER)
COMMANDS_KILLED = counter("commands_killed", "count", "Programs killed at their deadline.", _ASKER)

# Columns that distinguish the runs of a job: of a number that is used again, and of a clock that is set.
RUN, UPTIME = "run", "uptime"
RUN_FIELDS = (
    gauge(
        *(RUN, "none", "Which run of the job it is of: a number that every other run of the job has another one of."),
        "inode number of the job's cgroup and the machine's boot id, as a checksum",
    ),
    gauge(UPTIME, "sec", "Time since the machine's boot, at the time of the row.", "CLOCK_BOOTTIME"),
)
