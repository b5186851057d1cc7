"""Counters that several backends have about themselves: columns of `agent_default`, declared by each of them."""

from __future__ import annotations

from colmet.common.schema import counter

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
