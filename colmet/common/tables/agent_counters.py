"""Declarations of a backend's counters about itself: fields that become columns of `agent_default`."""

from __future__ import annotations

from colmet.common.schema import Field


def counter(name: str, text: str, backend: str) -> Field:
    """Return the declaration of a backend's counter about itself.

    Args:
        name: of the column.
        text: meaning, a sentence.
        backend: owner of the counter.
    """
    return Field(name, "count", "counter", f"{text} Source: the {backend}.")


# Of every backend that measures several things of a kind; declared by each of them.
PART_FAILURES = counter(
    "part_failures",
    "Unreadable zones, sensors, ports, mounts and values of GPUs; their values are missing.",
    "backend that measures them",
)
# Of every backend in a thread of its own.
LEFT_OUT = Field(
    "left_out", "count", "counter", "Ticks without rows, the measurement before not having ended. Source: the agent."
)
LATE = Field(
    "late",
    "count",
    "counter",
    "Measurements that ended after their deadline. Source: the agent.",
)
COMMANDS = counter("commands", "Programs started.", "backend that asks programs")
COMMANDS_KILLED = counter("commands_killed", "Programs killed at their deadline.", "backend that asks programs")
