"""Values derived from the columns of a whole job's summary, each declared once; and the table of narrow rows, `listed`.

Lists, filters, sorting and sums read `listed`: a row for each job with what people sort and add up, a fifth of the
whole summary. Triggers keep it equal to the table `jobs`, whichever connection writes that. A derived value that has
the name of a column replaces it in answers: `user` and `state` are those shown to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from colmet.jobs import columns
from colmet.jobs.columns import INTEGER, JOB, JOB_COLUMNS, REAL, START, TEXT, JobColumn


class Derived(NamedTuple):
    """A value computed from columns of table `jobs`."""

    column: JobColumn
    sql: str  # over columns of `jobs`; NULL if one that it needs is missing


# A meter of a whole node (ipmi) includes its GPUs; RAPL does not.
_ENERGY = """CASE WHEN joules IS NULL THEN gpu_joules WHEN energy_source = 'rapl' THEN joules + coalesce(gpu_joules, 0)
    ELSE joules END"""

# A job held the CPUs that the kernel let it use; fewer, if nothing confined it and its CPU time fits in those that
# Slurm or Grid Engine gave it, with the 2 s by which whole seconds of times may be wrong. OAR counts resources.
_PER_CPU_S = "coalesce(core_s / nullif(cpus, 0), wall_s)"
_BATCH_HOSTS = "length(batch_hosts) - length(replace(batch_hosts, ',', '')) + 1"
_IS_GIVEN = f"""system IN ('slurm', 'gridengine') AND allocated_cores > 0
    AND coalesce(cpu_s, 0) <= ({_PER_CPU_S} + 2) * allocated_cores
    AND (allocated_cores < cpus OR (cpus IS NULL AND hosts = {_BATCH_HOSTS}))"""
_CPUS = f"CASE WHEN {_IS_GIVEN} THEN 1.0 * allocated_cores ELSE cpus END"
_CORE_S = f"CASE WHEN {_IS_GIVEN} THEN {_PER_CPU_S} * allocated_cores ELSE core_s END"


def _derived(name: str, kind: str, unit: str, text: str, sql: str) -> Derived:
    return Derived(JobColumn(name, kind, unit, text), sql)


DERIVED = (
    _derived("user", TEXT, "", "User of the job.", 'coalesce(owner, "user")'),
    _derived(
        *("state", TEXT, "", "running; done, failed, ... by the batch system; ended if it has not said how."),
        # OAR and Grid Engine have no word for it; Slurm has
        f"CASE WHEN state = '{columns.FAILED}' AND system <> 'slurm' AND oom_kills > 0 THEN '{columns.OUT_OF_MEMORY}' "
        f"ELSE coalesce(state, CASE WHEN is_running THEN '{columns.RUNNING}' ELSE '{columns.ENDED}' END) END",
    ),
    _derived("end", INTEGER, "date", "Last row; of a running job, until now.", "coalesce(last, ended, start)"),
    _derived(
        *("wall_s", REAL, "s", "Time from the start to the last row; without rows, to the end by the batch system."),
        "coalesce(wall_s, 1.0 * (ended - started))",
    ),
    _derived("cpus", REAL, "", "Cores that it held, the mean over time.", _CPUS),
    _derived("core_s", REAL, "s", "Allocated CPU time: wall time times the cores that it held.", _CORE_S),
    _derived(
        *("cpu_ratio", REAL, "share", "CPU time used of the allocated."), f"min(1.0, cpu_s / nullif({_CORE_S}, 0))"
    ),
    _derived(
        *("wasted_core_s", REAL, "s", "Allocated CPU time less the CPU time used."), f"max(0.0, ({_CORE_S}) - cpu_s)"
    ),
    _derived("waited_s", INTEGER, "s", "Time from the submission to the start.", "started - submitted"),
    _derived(
        *("walltime_ratio", REAL, "share", "Wall time of the requested walltime."),
        "coalesce(ended - started, wall_s) / (1.0 * nullif(requested_walltime_s, 0))",
    ),
    _derived(
        *("memory_used_ratio", REAL, "share"),
        "Memory peak of the allocated memory; without, of the requested, else of the limit.",
        "coalesce(memory_peak / (1.0 * coalesce(nullif(allocated_memory, 0), nullif(requested_memory, 0))), "
        "memory_ratio)",
    ),
    _derived(
        *("gpu_ratio", REAL, "share", "Use of its GPUs, of the time that they were held."),
        "gpu_busy_s / nullif(gpu_s, 0)",
    ),
    _derived(
        *("energy_joules", REAL, "J", "Its share of its nodes' energy, and its GPUs' unless the meter has them."),
        _ENERGY,
    ),
    _derived(
        *("advice_count", INTEGER, "", "Number of rules of advice that apply."),
        "CASE WHEN rules = '' THEN 0 ELSE length(rules) - length(replace(rules, ' ', '')) + 1 END",
    ),
)
DERIVED_COLUMNS: Mapping[str, JobColumn] = {one.column.name: one.column for one in DERIVED}
_SQL = {one.column.name: one.sql for one in DERIVED}

ANSWERS: Mapping[str, JobColumn] = {**JOB_COLUMNS, **DERIVED_COLUMNS}  # all values of a whole job, by name

_LISTED = (
    *("user", "state", "end", "project", "queue", "name", "array", "system", "exit_code", "rules", "advice_count"),
    *("hosts", "cpus", "wall_s", "host_s", "waited_s", "walltime_ratio"),
    *("core_s", "cpu_s", "cpu_ratio", "wasted_core_s", "memory_peak", "memory_used_ratio", "memory_byte_s"),
    *("gpus", "gpu_s", "gpu_busy_s", "gpu_ratio", "energy_joules", "energy_s"),
)
LISTED: Mapping[str, JobColumn] = {name: ANSWERS[name] for name in (START.name, JOB.name, *_LISTED)}


def sql_of(name: str) -> str:
    """Return the expression of a value, over the columns of table `jobs`."""
    return _SQL.get(name, f'"{name}"')


_NAMES = ", ".join([f'"{name}"' for name in LISTED])
_VALUES = ", ".join([sql_of(name) for name in LISTED])


def _follow(event: str) -> str:
    """Return the statement that creates a trigger, which copies a written row of `jobs`."""
    sets = ", ".join([f'"{name}" = excluded."{name}"' for name in _LISTED])
    return (
        f"CREATE TRIGGER IF NOT EXISTS listed_{event} AFTER {event} ON jobs BEGIN INSERT INTO listed ({_NAMES}) "
        f"SELECT {_VALUES} FROM jobs WHERE job = NEW.job AND start = NEW.start "
        f"ON CONFLICT (start, job) DO UPDATE SET {sets}; END"
    )


_COLUMNS = ", ".join([f'"{name}" {column.kind}' for name, column in LISTED.items()])
DDL = (
    f"CREATE TABLE IF NOT EXISTS listed ({_COLUMNS}, PRIMARY KEY (start, job)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS listed_by_user ON listed (user, start, job)",
    "CREATE INDEX IF NOT EXISTS hosts_by_host ON hosts (host, start, job)",
    _follow("insert"),
    _follow("update"),
    """CREATE TRIGGER IF NOT EXISTS listed_move AFTER UPDATE OF start ON jobs WHEN OLD.start <> NEW.start BEGIN
    DELETE FROM listed WHERE start = OLD.start AND job = OLD.job; END""",
    """CREATE TRIGGER IF NOT EXISTS listed_delete AFTER DELETE ON jobs BEGIN
    DELETE FROM listed WHERE start = OLD.start AND job = OLD.job; END""",
)
