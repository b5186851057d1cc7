"""What people read of a job, each measure defined once: its columns, the best first, and where each of them is from.

A node has a value from one source at a time: the cgroups of the job where they have it, else its processes.
"""

from __future__ import annotations

from typing import NamedTuple

CGROUP, PROCESSES = "cgroup", "processes"
ORIGINS = {CGROUP: "its cgroup", PROCESSES: "its processes, from /proc"}
_KIB = 1024.0


class Source(NamedTuple):
    """A column that has the values of a measure.

    Attributes:
        table: the table of the column.
        column: its name.
        factor: what its values are multiplied by, to be in the unit of the measure.
        origin: one of `ORIGINS`.
    """

    table: str
    column: str
    factor: float
    origin: str


class Measure(NamedTuple):
    """A quantity that people read.

    Attributes:
        key: its name in commands and answers.
        help: what it is.
        sources: the best first.
    """

    key: str
    help: str
    sources: tuple[Source, ...]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Table and column of each source."""
        return [(source.table, source.column) for source in self.sources]


MEMORY = Measure(
    "memory",
    "Memory that a job uses, in bytes: what its cgroup is charged for, page cache too; else that of its processes.",
    (
        Source("cgroup_default", "memory_current", 1.0, CGROUP),
        Source("jobprocstats_default", "memory_used", 1.0, PROCESSES),
        Source("jobprocstats_default", "VmRSS", _KIB, PROCESSES),  # all that an older colmet-node has
    ),
)
MEMORY_ANON = Measure(
    "memory_anon",
    "Memory that is neither page cache nor shared nor the kernel's, in bytes.",
    (
        Source("cgroup_default", "memory_anon", 1.0, CGROUP),
        Source("jobprocstats_default", "RssAnon", _KIB, PROCESSES),
    ),
)
TASKS = Measure(
    "tasks",
    "Tasks that a job has, threads too.",
    (
        Source("cgroup_default", "pids_current", 1.0, CGROUP),
        Source("jobprocstats_default", "tasks", 1.0, PROCESSES),
    ),
)
MEASURES = {measure.key: measure for measure in (MEMORY, MEMORY_ANON, TASKS)}
