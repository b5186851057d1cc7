"""The panels of all dashboards, with the column names of docs/metrics.md; unknown names are refused."""

from __future__ import annotations

from colmet.common import measures as m
from colmet.common.daemon.daemon_health import in_base_unit, named
from colmet.common.measures import Measure, Source
from colmet.common.tables import schemas as _schemas
from dev.dashboards.model import DISTINCT, INCREASE, LARGEST, TOTAL, Dashboard, Line, Panel, Query, Section, of

_STATES = ("user", "nice", "system", "iowait", "irq", "softirq", "steal")
_WAITS = (m.WAIT_CPU, m.WAIT_IO, m.WAIT_SWAP, m.WAIT_RECLAIM)
_TIME_TEXT = (
    "Of the time in which tasks ran or wanted to: what they ran, and what they waited for. Waits for I/O, swap and"
    " reclaim are counted where kernel.task_delayacct is 1."
)
_BY_GPU, _BY_JOB = ("host", "uuid"), ("host", "job")
_OF_GPU, _OF_JOB = "{uuid} {host}", "job {job} {host}"
_OF_PROCESSES = "Of jobs for which no cgroup counts it, or with --enable-jobproc."
_STEP = "In each step of the picture."
_SCRAPES = "Growth in a step of the picture, or in four scrapes where that is longer."  # $__rate_interval


# -- jobs: from the rows of nodes, in the databases and on the page for Prometheus --


def _of_jobs(grown: str) -> list[Section]:
    """Return the sections on a job; `grown` describes the time span of increases."""

    def line(what: Measure | Source, text: str = "", **more: object) -> Line:
        return of(what, f"{text} {{host}}".strip(), **more)

    return [
        Section(
            "CPU",
            Panel(
                "CPU cores used, and allocated",
                line(m.CPU_USED, "used"),
                line(m.CPUS, "allocated", frame=True),
                text="Areas are added up; the dashed line at the top is what was allocated.",
                kind="stack",
            ),
            Panel(
                "Where the time went",
                line(m.CPU_USED.of(m.TASKS)[0], "running", noun="tasks"),
                *[line(wait, wait.label, noun="tasks") for wait in _WAITS],
                text=_TIME_TEXT,
                kind="share",
            ),
            Panel(
                "CPU time in the kernel, and kept back by a quota",
                line(m.CPU_SYSTEM, "kernel"),
                line(m.CPU_THROTTLED, "throttled"),
            ),
            Panel(
                "Pressure: time in which some task waited",
                line(m.PRESSURE["cpu_some"], "CPU", noun="s/s"),
                line(m.PRESSURE["memory_some"], "memory", noun="s/s"),
                line(m.PRESSURE["io_some"], "I/O", noun="s/s"),
                text="1 s/s: all of the time. Only on nodes with cgroup v2.",
            ),
            Panel("Tasks", line(m.TASKS_NOW), kind="stack"),
            Panel("Tasks, by its processes", line(m.TASKS_NOW.of(m.PROCESSES)[0]), text=_OF_PROCESSES, kind="stack"),
        ),
        Section(
            "Memory",
            Panel(
                "Memory, and its limit",
                line(m.MEMORY, "used"),
                line(m.MEMORY_LIMIT, "limit", frame=True),
                text="Areas are added up; the dashed line at the top is the limit, where there is one.",
                kind="stack",
            ),
            Panel(
                "Memory of its processes",
                line(m.MEMORY.of(m.PROCESSES)[0], "used"),
                line(m.MEMORY_ANON.of(m.PROCESSES)[0], "anonymous"),
                text=_OF_PROCESSES,
            ),
            Panel(
                "Memory by kind",
                line(m.MEMORY_ANON, "anonymous"),
                line(m.MEMORY_FILE, "files"),
                line(m.MEMORY_KERNEL, "kernel"),
                line(m.MEMORY_SWAP, "in swap"),
                kind="stack",
            ),
            Panel(
                "Page faults with I/O", line(m.MAJOR_FAULTS), text="Many of them: memory is short, or a program starts."
            ),
            Panel(
                "Limit reached, and processes killed",
                line(m.MEMORY_LIMIT_HITS, "limit reached", how=INCREASE),
                line(m.OOM_KILLS, "killed", how=INCREASE),
                text=grown,
            ),
        ),
        Section(
            "Input and output",
            Panel(
                "Bytes to and from storage",
                line(m.CHARGED_READ, "read"),
                line(m.CHARGED_WRITE, "written"),
                text="As the kernel charges them to tasks: what the page cache had is not in it.",
            ),
            Panel(
                "Bytes that programs read and wrote",
                line(m.CALLS_READ, "read"),
                line(m.CALLS_WRITE, "written"),
                text="What the page cache had, pipes and network file systems are in it.",
            ),
            Panel("Bytes on block devices", line(m.IO_READ, "read"), line(m.IO_WRITE, "written")),
            Panel(
                "Read and write calls", line(m.READ_CALLS.sources[1], "read"), line(m.WRITE_CALLS.sources[1], "written")
            ),
        ),
        Section(
            "GPU",
            Panel(
                "GPUs held, and idle",
                line(m.JOB_GPU_COUNT, "held"),
                line(m.JOB_GPU_IDLE, "idle"),
                text="Idle: no process of the job runs there.",
            ),
            Panel(
                "How busy GPUs are",
                of(m.GPU_OF_JOB_USE, "{host} {uuid}", _BY_GPU),
                text="Share of the time in which the job's own processes computed there.",
            ),
            Panel("Memory on GPUs", of(m.GPU_OF_JOB_MEMORY, "{host} {uuid}", _BY_GPU), kind="stack"),
            Panel("Power of its GPUs", line(m.JOB_GPU_POWER), kind="stack"),
        ),
        Section(
            "Hardware events",
            Panel(
                "Perf events, a sample",
                *[line(Source("perfhwstats_default", f"counter_{n}"), f"{n}") for n in range(1, 6)],
                text="Which events they are, mapping_default says: --perfhw-list names them in this order.",
            ),
        ),
    ]


# -- Elasticsearch and OpenSearch --

_MISSING = ("failed", "late", "dropped")
_COMPLETENESS = Section(
    "Completeness",
    Panel(
        "Samples that are missing",
        *[
            Line("completeness_default", what, f"{what} {{host}} {{table}}", ("host", "table"), INCREASE, top=20)
            for what in _MISSING
        ],
        text="Of the samples that were due: those that could not be measured, were left out as the node was behind, and"
        " were dropped as no collector took them. Nothing above 0: nothing is missing but what is on its way.",
        slow=True,
    ),
    Panel(
        "Gaps",
        Line("gaps_default", "hostname", "node"),
        Line("gaps_default", "table", "table"),
        Line("gaps_default", "why", "why"),
        Line("gaps_default", "first", "from"),
        Line("gaps_default", "last", "to"),
        Line("gaps_default", "samples", "samples"),
        text="What is missing, from when to when.",
        kind="rows",
    ),
)


# Network and shared file systems: of whole nodes, and by port and mount.
_NETWORK = [
    Panel("InfiniBand", of(m.NETWORK_SENT, "sent {host}"), of(m.NETWORK_RECEIVED, "received {host}")),
    Panel("Lustre", of(m.LUSTRE_READ, "read {host}"), of(m.LUSTRE_WRITE, "written {host}")),
]
_PORTS = [
    Panel(
        "InfiniBand",
        Line("infinibandports_default", "port_xmit_data", "sent {port} {host}", ("host", "port")),
        Line("infinibandports_default", "port_rcv_data", "received {port} {host}", ("host", "port")),
    ),
    Panel(
        "Errors of InfiniBand links",
        *[
            Line("infinibandports_default", column, f"{column} {{port}} {{host}}", ("host", "port"), INCREASE)
            for column in ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors")
        ],
        text="In each step of the picture; any is worth a look at the cable.",
    ),
    Panel(
        "Lustre",
        Line("lustremounts_default", "bytes_read", "read {mount} {host}", ("host", "mount")),
        Line("lustremounts_default", "bytes_write", "written {mount} {host}", ("host", "mount")),
    ),
    Panel(
        "What is asked of Lustre",
        *[
            Line("lustremounts_default", column, f"{column} {{mount}} {{host}}", ("host", "mount"))
            for column in ("open", "close", "getattr", "unlink", "readdir")
        ],
        text="Files opened, looked at and removed cost the metadata servers, which all jobs share.",
    ),
]
_POWER = [
    Panel("Power of the nodes", of(m.NODE_MEAN_POWER), kind="stack"),
    Panel(
        "Power of processors and memory",
        of(m.ZONE_POWER, "{zone} {host}", ("host", "zone")),
        text="A package's zone holds that of its cores.",
    ),
]
_MEAN_TIMES = "The mean of the nodes, times their number."


def _totals(kind: str) -> list[Panel]:
    return [
        Panel("Nodes heard of", Line("procstats_default", "hostname", "nodes", (), DISTINCT), kind=kind),
        Panel("Jobs", Line("cgroup_default", "job_id", "jobs", (), DISTINCT), kind=kind),
        Panel(
            "Power of all nodes",
            of(m.NODE_MEAN_POWER, "power", (), TOTAL),
            text="The mean of the nodes that measure it, times their number.",
            kind=kind,
        ),
    ]


_OF_JOBS = [
    Panel("CPU cores used", of(m.CPU_USED, _OF_JOB, _BY_JOB), kind="stack"),
    Panel("Memory", of(m.MEMORY, _OF_JOB, _BY_JOB), kind="stack"),
    Panel(
        "Memory of their processes", of(m.MEMORY.of(m.PROCESSES)[0], _OF_JOB, _BY_JOB), text=_OF_PROCESSES, kind="stack"
    ),
]
STORED = (
    Dashboard(
        "cluster",
        "Colmet: cluster",
        "All nodes and jobs at a glance.",
        Section("Now", *_totals("number")),
        Section(
            "Over time",
            *_totals("lines"),
            Panel("Load of all nodes", of(m.NODE_LOAD, "runnable or blocked tasks", (), TOTAL), text=_MEAN_TIMES),
            Panel("Free memory of all nodes", of(m.NODE_MEMORY["memfree"], "free", (), TOTAL), text=_MEAN_TIMES),
            Panel(
                "Jobs that compute most: CPU cores used",
                of(m.CPU_USED, "job {job} {host}", ("job", "host"), top=10),
                text="The ten jobs with the most CPU time on one node.",
                kind="stack",
            ),
        ),
        Section(
            "Jobs and nodes",
            Panel(
                "Jobs",
                of(m.CPU_USED, "CPU time on its busiest node", ("job",), LARGEST),
                Line("cgroup_default", "hostname", "nodes", ("job",), DISTINCT),
                of(m.CPUS, "CPUs of a node", ("job",), LARGEST),
                of(m.MEMORY_PEAK, "memory peak on a node", ("job",), LARGEST),
                of(m.OOM_KILLS, "processes killed", ("job",), LARGEST),
                text="The hundred with the most CPU time on one node.",
                kind="table",
            ),
            Panel(
                "Nodes",
                Line("procstats_default", "timestamp", "heard of", ("host",), LARGEST),
                of(m.NODE_UPTIME, "up", ("host",), LARGEST),
                of(m.NODE_LOAD, "highest load", ("host",), LARGEST),
                of(m.NODE_MEMORY["memtotal"], "memory", ("host",), LARGEST),
                text="A hundred of them, those that were heard of last first.",
                kind="table",
            ),
        ),
        Section(
            "Colmet",
            Panel(
                "CPU used by colmet-node",
                Line("agent_default", "cpu_time", where={"backend": "agent"}, noun="cores", top=20),
                text="The twenty nodes with the most.",
                slow=True,
            ),
            Panel(
                "Samples that failed",
                Line("agent_default", "failures", "{backend} {host}", ("host", "backend"), INCREASE, top=20),
                text="In each step of the picture; the node's log says why.",
                slow=True,
            ),
        ),
        _COMPLETENESS,
    ),
    Dashboard(
        "node",
        "Colmet: node",
        "One node, or some: how busy it is, what it draws, what goes through it, and whose jobs run there.",
        Section(
            "CPU and memory",
            Panel("CPU cores busy", *[of(m.NODE_CPU[state], f"{state} {{host}}") for state in _STATES], kind="stack"),
            Panel("Load", of(m.NODE_LOAD, "1 minute {host}"), of(m.NODE_BLOCKED, "waiting for I/O {host}")),
            Panel(
                "Memory",
                of(m.NODE_MEMORY["anonpages"], "programs {host}"),
                of(m.NODE_MEMORY["cached"], "files {host}"),
                of(m.NODE_MEMORY["slab"], "kernel {host}"),
                of(m.NODE_MEMORY["memtotal"], "all {host}", frame=True),
                kind="stack",
            ),
            Panel(
                "Paging",
                of(m.NODE_READ, "read {host}"),
                of(m.NODE_WRITE, "written {host}"),
                text="All that goes to and from block devices.",
            ),
            Panel(
                "Swap",
                Line("procstats_default", "vmstat_pswpin", "pages in {host}"),
                Line("procstats_default", "vmstat_pswpout", "pages out {host}"),
            ),
        ),
        Section(
            "Power and temperature",
            *_POWER,
            Panel("Temperatures", of(m.TEMPERATURE, "{sensor} {host}", ("host", "sensor"))),
        ),
        Section(
            "GPUs",
            Panel("How busy", of(m.GPU_USE, _OF_GPU, _BY_GPU)),
            Panel("Memory", of(m.GPU_MEMORY, _OF_GPU, _BY_GPU), kind="stack"),
            Panel("Power", of(m.GPU_POWER, _OF_GPU, _BY_GPU), kind="stack"),
            Panel("Temperature", of(m.GPU_TEMPERATURE, _OF_GPU, _BY_GPU)),
        ),
        Section("Network and file systems", *_PORTS),
        Section("Jobs", *_OF_JOBS),
        Section(
            "Colmet",
            Panel(
                "CPU used by colmet-node",
                Line("agent_default", "cpu_time", "{backend} {host}", ("host", "backend")),
                text="The line of agent is all of it.",
                slow=True,
            ),
        ),
        _COMPLETENESS,
    ),
    Dashboard(
        "job",
        "Colmet: job",
        "What a job did, on each of its nodes.",
        *_of_jobs(_STEP),
        Section("Its nodes, with all that ran there", *_POWER, *_NETWORK),
        _COMPLETENESS,
    ),
)


# -- Prometheus --

_OF_HOST = ' * on (instance) group_left (host) colmet_node_info{host=~"$host"}'


def agent(column: str) -> str:
    """Return the name in Prometheus of a counter of the agent; KeyError if the agent has no such counter."""
    field = {field.name: field for field in _schemas()["agent_default"].fields}[column]
    return "colmet_node_" + in_base_unit(column, field.unit, field.kind)[0]


def metric(table: str, column: str) -> str:
    """Return the name in Prometheus of a column of a table of jobs."""
    line = Line(table, column)
    return named("colmet_job", table.removesuffix("_default"), column, kind=line.field.kind)


_CPU = metric(*m.CPU_USED.places[0])
_MEMORY = " or on (host, job) ".join([metric(*place) for place in m.MEMORY.places[:2]])


def _rate(name: str) -> str:
    return f"rate({name}[$__rate_interval])"


def _grown(name: str) -> str:
    return f"increase({name}[$__rate_interval])"


def _of_outputs(fold: str, rows: str, unit: str = "short") -> Query:
    return Query(f"{fold} by (instance, output) ({rows})", "{output} {instance}", unit)


def _of_node(fold: str, rows: str, label: str = "{host}", unit: str = "short", by: str = "host") -> Query:
    return Query(f"{fold} by ({by}) ({rows}{_OF_HOST})", label, unit)


SCRAPED = (
    Dashboard(
        "cluster",
        "Colmet: cluster and health",
        "Whether Colmet is well, and what all jobs use.",
        Section(
            "Now",
            Panel(
                "Nodes",
                Query("sum by (state) (colmet_collector_nodes)", "{state}"),
                text="Silent: not heard of for a minute; gone: for a day.",
                kind="number",
            ),
            Panel("Jobs", Query(f"count(count by (job) ({_CPU}))", "jobs"), kind="number"),
            Panel(
                "CPU cores used by jobs",
                Query(f"sum(max by (host, job) ({_rate(_CPU)})) / 1e9", "cores"),
                kind="number",
            ),
            Panel(
                "Memory used by jobs", Query(f"sum(max by (host, job) ({_MEMORY}))", "memory", "bytes"), kind="number"
            ),
        ),
        Section(
            "Jobs",
            Panel(
                "Jobs that compute most: CPU cores used",
                Query(f"topk(10, sum by (job) (max by (host, job) ({_rate(_CPU)}))) / 1e9", "job {job}"),
                kind="stack",
            ),
            Panel(
                "Jobs with most memory",
                Query(f"topk(10, sum by (job) (max by (host, job) ({_MEMORY})))", "job {job}", "bytes"),
                kind="stack",
            ),
        ),
        Section(
            "Collector",
            Panel("Nodes", Query("sum by (state) (colmet_collector_nodes)", "{state}")),
            Panel("Rows received", Query(f"sum by (instance) ({_rate('colmet_collector_rows_total')})", "{instance}")),
            Panel(
                "What went wrong",
                *[
                    Query(f"sum by (instance) ({_grown(f'colmet_collector_{name}_total')})", f"{name} {{instance}}")
                    for name in ("duplicates", "rejects")
                ],
                Query("sum by (instance) (colmet_collector_missing)", "missing batches {instance}"),
                text=f"{_SCRAPES} Duplicates do no harm: what was not acknowledged in time comes again.",
            ),
            Panel(
                "Age of batches as they come",
                Query("topk(10, max by (sender) (colmet_collector_sender_lag_seconds))", "{sender}", "s"),
                text="The ten nodes with the oldest. Below 0: a node's clock is ahead.",
            ),
            Panel(
                "Outputs that are there",
                _of_outputs("min", "colmet_collector_output_up"),
                text="1: it writes; 0: rows wait for it.",
            ),
            Panel("How far outputs are behind", _of_outputs("max", "colmet_collector_output_behind_seconds", "s")),
            Panel("Rows written", _of_outputs("sum", _rate("colmet_collector_output_written_rows_total"))),
            Panel(
                "Rows given up",
                _of_outputs("sum", _grown("colmet_collector_output_dropped_rows_total")),
                text="Anything above 0 is lost.",
            ),
        ),
        Section(
            "Job archive",
            Panel(
                "Unfinished summaries",
                Query("sum by (instance) (colmet_collector_archive_open)", "{instance}"),
                text="Of each job on each host; a summary is finished 10 minutes after the job's last row.",
            ),
            Panel(
                "Summaries written",
                Query(f"sum by (instance) ({_rate('colmet_collector_archive_jobs_total')})", "jobs {instance}"),
                Query(f"sum by (instance) ({_rate('colmet_collector_archive_hosts_total')})", "hosts {instance}"),
                text="Each second; those of running jobs are written many times.",
            ),
            Panel(
                "Rows late or left out",
                *[
                    Query(
                        f"sum by (instance) ({_grown(f'colmet_collector_archive_{name}_total')})",
                        f"{label} {{instance}}",
                    )
                    for name, label in (("late_rows", "late"), ("rows_left_out", "left out"))
                ],
                text=f"{_SCRAPES} Late rows count for peaks and numbers of samples alone.",
            ),
            Panel(
                "Size of the archive",
                Query("max by (instance) (colmet_collector_archive_size_bytes)", "{instance}", "bytes"),
            ),
        ),
        Section(
            "Nodes with a metrics page of their own",
            Panel(
                "Backends that are off",
                Query("sum by (backend) (1 - colmet_node_backend_up)", "{backend}"),
                text="Nodes on which it is asked for and what it needs is absent.",
            ),
            Panel(
                "CPU used by colmet-node",
                Query("topk(10, rate(colmet_node_cpu_seconds_total[$__rate_interval]))", "{instance}", "percentunit"),
                text="Of one core; the ten with the most.",
            ),
        ),
    ),
    Dashboard(
        "node",
        "Colmet: node",
        "A node's jobs, and how its colmet-node is.",
        Section(
            "Jobs",
            *_OF_JOBS,
            Panel(
                "Bytes to and from storage",
                of(m.CHARGED_READ, "read by job {job} {host}", ("host", "job")),
                of(m.CHARGED_WRITE, "written by job {job} {host}", ("host", "job")),
            ),
            Panel("Jobs", _of_node("max", agent("jobs"))),
        ),
        Section(
            "colmet-node",
            Panel(
                "Backends that measure",
                _of_node("min", "colmet_node_backend_up", "{backend} {host}", by="host, backend"),
                text="1: it measures; 0: what it needs is absent, and it is tried again.",
            ),
            Panel("Time that a sample takes", _of_node("max", "colmet_node_sample_duration_seconds", unit="s")),
            Panel(
                "CPU used",
                _of_node("max", _rate("colmet_node_cpu_seconds_total"), "all {host}", "percentunit"),
                _of_node(
                    *("max", _rate("colmet_node_backend_cpu_seconds_total"), "{backend} {host}", "percentunit"),
                    by="host, backend",
                ),
                text="Of one core.",
            ),
            Panel(
                "What went wrong",
                *[
                    _of_node("max", _grown(agent(column)), f"{column} {{host}}")
                    for column in ("overruns", "discovery_failures", "batches_dropped")
                ],
                _of_node(
                    *("max", _grown("colmet_node_backend_failures_total"), "failures of {backend} {host}"),
                    by="host, backend",
                ),
                text=_SCRAPES,
            ),
            Panel("Batches that wait for a collector", _of_node("max", agent("batches_waiting"))),
            Panel(
                "How long the oldest batch has waited", _of_node("max", "colmet_node_spool_oldest_seconds", unit="s")
            ),
        ),
    ),
    Dashboard("job", "Colmet: job", "What a job does, on each of its nodes.", *_of_jobs(_SCRAPES)),
)
