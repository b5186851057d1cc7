"""Columns that distinguish the runs of a job: of a number that is used again, and of a clock that is set."""

from __future__ import annotations

from colmet.common.schema import gauge

RUN, UPTIME = "run", "uptime"
RUN_FIELDS = (
    gauge(
        *(RUN, "none", "Which run of the job it is of: a number that every other run of the job has another one of."),
        "inode number of the job's cgroup and the machine's boot id, as a checksum",
    ),
    gauge(UPTIME, "sec", "Time since the machine's boot, at the time of the row.", "CLOCK_BOOTTIME"),
)
