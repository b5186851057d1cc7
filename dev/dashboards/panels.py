"""The panels of all dashboards. Columns are named as in docs/metrics.md; a name that is not there is refused."""

from __future__ import annotations

from collections.abc import Sequence

from colmet.common.measures import MEMORY
from colmet.common.runtime.prometheus_text import in_base_unit, named
from colmet.common.tables import schemas as _schemas
from dev.dashboards.model import DISTINCT, INCREASE, LARGEST, TOTAL, Dashboard, Line, Panel, Query, Section

_STATES = ("user", "nice", "system", "iowait", "irq", "softirq", "steal")
_WAITS = {
    "waiting for a CPU": "cpu_delay_total",
    "block I/O": "blkio_delay_total",
    "swap": "swapin_delay_total",
    "memory reclaim": "freepages_delay_total",
}
_TIME_TEXT = (
    "Of the time in which tasks ran or wanted to: what they ran, and what they waited for. Waits for I/O, swap and"
    " reclaim are counted where kernel.task_delayacct is 1."
)
_ZONES = ("host", "zone")
_OF_PROCESSES = "Of jobs for which no cgroup counts it, or with --enable-jobproc."
_STEP = "In each step of the picture."
_SCRAPES = "Growth in a step of the picture, or in four scrapes where that is longer."  # $__rate_interval


# -- of jobs: what the nodes send of them is in the databases, and on the page for Prometheus --


def _of_jobs(by: Sequence[str], label: str, grown: str = _STEP) -> list[Section]:
    """What is known of jobs, split by these; `grown` says over which time increases are."""

    def line(table: str, column: str, text: str = "", **more: object) -> Line:
        return Line(table, column, f"{text} {label}".strip(), by, **more)  # type: ignore[arg-type]

    gpus, gpu = (*by, "uuid"), f"{label} {{uuid}}"
    return [
        Section(
            "CPU",
            [
                Panel(
                    "CPU cores used, and allocated",
                    [
                        line("cgroup_default", "cpu_usage", "used"),
                        line("cgroup_default", "cpus_allocated", "allocated", frame=True),
                    ],
                    "Areas are added up; the dashed line at the top is what was allocated.",
                    "stack",
                ),
                Panel(
                    "Where the time went",
                    [
                        line("taskstats_default", "cpu_total", "running", noun="tasks"),
                        *[line("taskstats_default", column, text, noun="tasks") for text, column in _WAITS.items()],
                    ],
                    _TIME_TEXT,
                    "share",
                ),
                Panel(
                    "CPU time in the kernel, and kept back by a quota",
                    [
                        line("cgroup_default", "cpu_system", "kernel"),
                        line("cgroup_default", "throttled_time", "throttled"),
                    ],
                ),
                Panel(
                    "Pressure: time in which some task waited",
                    [
                        line("cgroup_default", "cpu_pressure_some", "CPU", noun="s/s"),
                        line("cgroup_default", "memory_pressure_some", "memory", noun="s/s"),
                        line("cgroup_default", "io_pressure_some", "I/O", noun="s/s"),
                    ],
                    "1 s/s: all of the time. Nodes with cgroup v2 tell it.",
                ),
                Panel("Tasks", [line("cgroup_default", "pids_current")], kind="stack"),
                Panel("Tasks, by its processes", [line("jobprocstats_default", "tasks")], _OF_PROCESSES, "stack"),
            ],
        ),
        Section(
            "Memory",
            [
                Panel(
                    "Memory, and its limit",
                    [
                        line("cgroup_default", "memory_current", "used"),
                        line("cgroup_default", "memory_limit", "limit", frame=True),
                    ],
                    "Areas are added up; the dashed line at the top is the limit, where there is one.",
                    "stack",
                ),
                Panel(
                    "Memory of its processes",
                    [
                        line("jobprocstats_default", "memory_used", "used"),
                        line("jobprocstats_default", "RssAnon", "anonymous"),
                    ],
                    _OF_PROCESSES,
                ),
                Panel(
                    "Memory by kind",
                    [
                        line("cgroup_default", "memory_anon", "anonymous"),
                        line("cgroup_default", "memory_file", "files"),
                        line("cgroup_default", "memory_kernel", "kernel"),
                        line("cgroup_default", "memory_swap", "in swap"),
                    ],
                    kind="stack",
                ),
                Panel(
                    "Page faults with I/O",
                    [line("cgroup_default", "memory_pgmajfault")],
                    "Many of them: memory is short, or a program starts.",
                ),
                Panel(
                    "Limit reached, and processes killed",
                    [
                        line("cgroup_default", "memory_limit_hits", "limit reached", how=INCREASE),
                        line("cgroup_default", "memory_oom_kills", "killed", how=INCREASE),
                    ],
                    grown,
                ),
            ],
        ),
        Section(
            "Input and output",
            [
                Panel(
                    "Bytes to and from storage",
                    [
                        line("taskstats_default", "read_bytes", "read"),
                        line("taskstats_default", "write_bytes", "written"),
                    ],
                    "As the kernel charges them to tasks: what the page cache had is not in it.",
                ),
                Panel(
                    "Bytes that programs read and wrote",
                    [
                        line("taskstats_default", "read_char", "read"),
                        line("taskstats_default", "write_char", "written"),
                    ],
                    "What the page cache had, pipes and network file systems are in it.",
                ),
                Panel(
                    "Bytes on block devices",
                    [
                        line("cgroup_default", "io_read_bytes", "read"),
                        line("cgroup_default", "io_write_bytes", "written"),
                    ],
                ),
                Panel(
                    "Read and write calls",
                    [
                        line("taskstats_default", "read_syscalls", "read"),
                        line("taskstats_default", "write_syscalls", "written"),
                    ],
                ),
            ],
        ),
        Section(
            "GPU",
            [
                Panel(
                    "GPUs held, and idle",
                    [line("nvidiastats_default", "gpus", "held"), line("nvidiastats_default", "gpus_idle", "idle")],
                    "Idle: no process of the job runs there.",
                ),
                Panel(
                    "How busy GPUs are",
                    [Line("nvidiajobs_default", "utilization_sm", gpu, gpus)],
                    "Share of the time in which the job's own processes computed there.",
                ),
                Panel("Memory on GPUs", [Line("nvidiajobs_default", "memory_used", gpu, gpus)], kind="stack"),
                Panel("Power of its GPUs", [line("nvidiastats_default", "power")], kind="stack"),
            ],
        ),
        Section(
            "Hardware events",
            [
                Panel(
                    "Perf events, a sample",
                    [line("perfhwstats_default", f"counter_{n}", f"{n}") for n in range(1, 6)],
                    "Which events they are, mapping_default says: --perfhw-list names them in this order.",
                )
            ],
        ),
    ]


# -- Elasticsearch and OpenSearch --

_MISSING = ("failed", "late", "dropped")
_COMPLETENESS = Section(
    "Completeness",
    [
        Panel(
            "Samples that are missing",
            [
                Line("completeness_default", what, f"{what} {{host}} {{table}}", ("host", "table"), INCREASE, top=20)
                for what in _MISSING
            ],
            "Of the samples that were due: those that could not be measured, were left out as the node was behind, and"
            " were dropped as no collector took them. Nothing above 0: nothing is missing but what is on its way.",
            slow=True,
        ),
        Panel(
            "Gaps",
            [
                Line("gaps_default", "hostname", "node"),
                Line("gaps_default", "table", "table"),
                Line("gaps_default", "why", "why"),
                Line("gaps_default", "first", "from"),
                Line("gaps_default", "last", "to"),
                Line("gaps_default", "samples", "samples"),
            ],
            "What is missing, from when to when.",
            "rows",
        ),
    ],
)


def _network(ports: bool) -> list[Panel]:
    """What goes over the network and to shared file systems, of whole nodes or by port and mount."""
    if not ports:
        return [
            Panel(
                "InfiniBand",
                [
                    Line("infinibandstats_default", "portXmitData", "sent {host}"),
                    Line("infinibandstats_default", "portRcvData", "received {host}"),
                ],
            ),
            Panel(
                "Lustre",
                [
                    Line("lustrestats_default", "lustre_bytes_read", "read {host}"),
                    Line("lustrestats_default", "lustre_bytes_write", "written {host}"),
                ],
            ),
        ]
    port, mount = ("host", "port"), ("host", "mount")
    return [
        Panel(
            "InfiniBand",
            [
                Line("infinibandports_default", "port_xmit_data", "sent {port} {host}", port),
                Line("infinibandports_default", "port_rcv_data", "received {port} {host}", port),
            ],
        ),
        Panel(
            "Errors of InfiniBand links",
            [
                Line("infinibandports_default", column, f"{column} {{port}} {{host}}", port, INCREASE)
                for column in ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors")
            ],
            "In each step of the picture; any is worth a look at the cable.",
        ),
        Panel(
            "Lustre",
            [
                Line("lustremounts_default", "bytes_read", "read {mount} {host}", mount),
                Line("lustremounts_default", "bytes_write", "written {mount} {host}", mount),
            ],
        ),
        Panel(
            "What is asked of Lustre",
            [
                Line("lustremounts_default", column, f"{column} {{mount}} {{host}}", mount)
                for column in ("open", "close", "getattr", "unlink", "readdir")
            ],
            "Files opened, looked at and removed cost the metadata servers, which all jobs share.",
        ),
    ]


def _power() -> list[Panel]:
    return [
        Panel("Power of the nodes", [Line("ipmipowerstats_default", "average_power_consumption")], kind="stack"),
        Panel(
            "Power of processors and memory",
            [Line("raplzones_default", "power", "{zone} {host}", _ZONES)],
            "A package's zone holds that of its cores.",
        ),
    ]


STORED = (
    Dashboard(
        "cluster",
        "Colmet: cluster",
        "All nodes and jobs at a glance.",
        [
            Section(
                "Now",
                [
                    Panel(
                        "Nodes heard of", [Line("procstats_default", "hostname", "nodes", (), DISTINCT)], kind="number"
                    ),
                    Panel("Jobs", [Line("cgroup_default", "job_id", "jobs", (), DISTINCT)], kind="number"),
                    Panel(
                        "Power of all nodes",
                        [Line("ipmipowerstats_default", "average_power_consumption", "power", (), TOTAL)],
                        "The mean of the nodes that tell it, times their number.",
                        "number",
                    ),
                ],
            ),
            Section(
                "Over time",
                [
                    Panel("Nodes heard of", [Line("procstats_default", "hostname", "nodes", (), DISTINCT)]),
                    Panel("Jobs", [Line("cgroup_default", "job_id", "jobs", (), DISTINCT)]),
                    Panel(
                        "Power of all nodes",
                        [Line("ipmipowerstats_default", "average_power_consumption", "power", (), TOTAL)],
                        "The mean of the nodes that tell it, times their number.",
                    ),
                    Panel(
                        "Load of all nodes",
                        [Line("procstats_default", "loadavg_1min", "runnable or blocked tasks", (), TOTAL)],
                        "The mean of the nodes, times their number.",
                    ),
                    Panel(
                        "Free memory of all nodes",
                        [Line("procstats_default", "meminfo_memfree", "free", (), TOTAL)],
                        "The mean of the nodes, times their number.",
                    ),
                    Panel(
                        "Jobs that compute most: CPU cores used",
                        [Line("cgroup_default", "cpu_usage", "job {job} {host}", ("job", "host"), top=10)],
                        "The ten jobs with the most CPU time on one node.",
                        "stack",
                    ),
                ],
            ),
            Section(
                "Jobs and nodes",
                [
                    Panel(
                        "Jobs",
                        [
                            Line("cgroup_default", "cpu_usage", "CPU time on its busiest node", ("job",), LARGEST),
                            Line("cgroup_default", "hostname", "nodes", ("job",), DISTINCT),
                            Line("cgroup_default", "cpus_allocated", "CPUs of a node", ("job",), LARGEST),
                            Line("cgroup_default", "memory_peak", "memory peak on a node", ("job",), LARGEST),
                            Line("cgroup_default", "memory_oom_kills", "processes killed", ("job",), LARGEST),
                        ],
                        "The hundred with the most CPU time on one node.",
                        "table",
                    ),
                    Panel(
                        "Nodes",
                        [
                            Line("procstats_default", "timestamp", "heard of", ("host",), LARGEST),
                            Line("procstats_default", "uptime_total", "up", ("host",), LARGEST),
                            Line("procstats_default", "loadavg_1min", "highest load", ("host",), LARGEST),
                            Line("procstats_default", "meminfo_memtotal", "memory", ("host",), LARGEST),
                        ],
                        "A hundred of them, those that were heard of last first.",
                        "table",
                    ),
                ],
            ),
            Section(
                "Colmet",
                [
                    Panel(
                        "CPU used by colmet-node",
                        [
                            Line(
                                "agent_default",
                                "cpu_time",
                                where={"backend": "agent"},
                                noun="cores",
                                top=20,
                            )
                        ],
                        "The twenty nodes with the most.",
                        slow=True,
                    ),
                    Panel(
                        "Samples that failed",
                        [
                            Line(
                                "agent_default",
                                "failures",
                                "{backend} {host}",
                                ("host", "backend"),
                                INCREASE,
                                top=20,
                            )
                        ],
                        "In each step of the picture; the node's log says why.",
                        slow=True,
                    ),
                ],
            ),
            _COMPLETENESS,
        ],
    ),
    Dashboard(
        "node",
        "Colmet: node",
        "One node, or some: how busy it is, what it draws, what goes through it, and whose jobs run there.",
        [
            Section(
                "CPU and memory",
                [
                    Panel(
                        "CPU cores busy",
                        [Line("procstats_default", f"stat_cpu_{state}", f"{state} {{host}}") for state in _STATES],
                        kind="stack",
                    ),
                    Panel(
                        "Load",
                        [
                            Line("procstats_default", "loadavg_1min", "1 minute {host}"),
                            Line("procstats_default", "stat_procs_blocked", "waiting for I/O {host}"),
                        ],
                    ),
                    Panel(
                        "Memory",
                        [
                            Line("procstats_default", "meminfo_anonpages", "programs {host}"),
                            Line("procstats_default", "meminfo_cached", "files {host}"),
                            Line("procstats_default", "meminfo_slab", "kernel {host}"),
                            Line("procstats_default", "meminfo_memtotal", "all {host}", frame=True),
                        ],
                        kind="stack",
                    ),
                    Panel(
                        "Paging",
                        [
                            Line("procstats_default", "vmstat_pgpgin", "read {host}"),
                            Line("procstats_default", "vmstat_pgpgout", "written {host}"),
                        ],
                        "All that goes to and from block devices.",
                    ),
                    Panel(
                        "Swap",
                        [
                            Line("procstats_default", "vmstat_pswpin", "pages in {host}"),
                            Line("procstats_default", "vmstat_pswpout", "pages out {host}"),
                        ],
                    ),
                ],
            ),
            Section(
                "Power and temperature",
                [
                    *_power(),
                    Panel(
                        "Temperatures",
                        [Line("temperatures_default", "temperature", "{sensor} {host}", ("host", "sensor"))],
                    ),
                ],
            ),
            Section(
                "GPUs",
                [
                    Panel(
                        "How busy", [Line("nvidiagpus_default", "utilization_gpu", "{uuid} {host}", ("host", "uuid"))]
                    ),
                    Panel(
                        "Memory",
                        [Line("nvidiagpus_default", "memory_used", "{uuid} {host}", ("host", "uuid"))],
                        kind="stack",
                    ),
                    Panel(
                        "Power", [Line("nvidiagpus_default", "power", "{uuid} {host}", ("host", "uuid"))], kind="stack"
                    ),
                    Panel(
                        "Temperature", [Line("nvidiagpus_default", "temperature", "{uuid} {host}", ("host", "uuid"))]
                    ),
                ],
            ),
            Section("Network and file systems", _network(ports=True)),
            Section(
                "Jobs",
                [
                    Panel(
                        "CPU cores used",
                        [Line("cgroup_default", "cpu_usage", "job {job} {host}", ("host", "job"))],
                        kind="stack",
                    ),
                    Panel(
                        "Memory",
                        [Line("cgroup_default", "memory_current", "job {job} {host}", ("host", "job"))],
                        kind="stack",
                    ),
                    Panel(
                        "Memory of their processes",
                        [Line("jobprocstats_default", "memory_used", "job {job} {host}", ("host", "job"))],
                        _OF_PROCESSES,
                        "stack",
                    ),
                ],
            ),
            Section(
                "Colmet",
                [
                    Panel(
                        "CPU used by colmet-node",
                        [Line("agent_default", "cpu_time", "{backend} {host}", ("host", "backend"))],
                        "The line of agent is all of it.",
                        slow=True,
                    )
                ],
            ),
            _COMPLETENESS,
        ],
    ),
    Dashboard(
        "job",
        "Colmet: job",
        "What a job did, on each of its nodes.",
        [
            *_of_jobs(("host",), "{host}"),
            Section("Its nodes, with all that ran there", [*_power(), *_network(ports=False)]),
            _COMPLETENESS,
        ],
    ),
)


# -- Prometheus --

_OF_HOST = ' * on (instance) group_left (host) colmet_node_info{host=~"$host"}'


def agent(column: str) -> str:
    """The name in Prometheus of a counter of the agent.

    Raises:
        KeyError: there is none of this name.
    """
    field = {field.name: field for field in _schemas()["agent_default"].fields}[column]
    return "colmet_node_" + in_base_unit(column, field.unit, field.kind)[0]


def metric(table: str, column: str) -> str:
    """The name in Prometheus of a column of a table of jobs."""
    line = Line(table, column)
    return named("colmet_job", table.removesuffix("_default"), column, kind=line.field.kind)


_CPU = metric("cgroup_default", "cpu_usage")
_MEMORY = " or on (host, job) ".join([metric(*place) for place in MEMORY.places[:2]])


def _rate(name: str) -> str:
    return f"rate({name}[$__rate_interval])"


def _grown(name: str) -> str:
    return f"increase({name}[$__rate_interval])"


SCRAPED = (
    Dashboard(
        "cluster",
        "Colmet: cluster and health",
        "Whether Colmet is well, and what all jobs use.",
        [
            Section(
                "Now",
                [
                    Panel(
                        "Nodes",
                        [Query("sum by (state) (colmet_collector_nodes)", "{state}")],
                        "Silent: not heard of for a minute; gone: for a day.",
                        "number",
                    ),
                    Panel("Jobs", [Query(f"count(count by (job) ({_CPU}))", "jobs")], kind="number"),
                    Panel(
                        "CPU cores used by jobs",
                        [Query(f"sum(max by (host, job) ({_rate(_CPU)})) / 1e9", "cores")],
                        kind="number",
                    ),
                    Panel(
                        "Memory used by jobs",
                        [Query(f"sum(max by (host, job) ({_MEMORY}))", "memory", "bytes")],
                        kind="number",
                    ),
                ],
            ),
            Section(
                "Jobs",
                [
                    Panel(
                        "Jobs that compute most: CPU cores used",
                        [
                            Query(
                                f"topk(10, sum by (job) (max by (host, job) ({_rate(_CPU)}))) / 1e9",
                                "job {job}",
                            )
                        ],
                        kind="stack",
                    ),
                    Panel(
                        "Jobs with most memory",
                        [Query(f"topk(10, sum by (job) (max by (host, job) ({_MEMORY})))", "job {job}", "bytes")],
                        kind="stack",
                    ),
                ],
            ),
            Section(
                "Collector",
                [
                    Panel("Nodes", [Query("sum by (state) (colmet_collector_nodes)", "{state}")]),
                    Panel(
                        "Rows received",
                        [Query(f"sum by (instance) ({_rate('colmet_collector_rows_total')})", "{instance}")],
                    ),
                    Panel(
                        "What went wrong",
                        [
                            Query(
                                f"sum by (instance) ({_grown(f'colmet_collector_{name}_total')})",
                                f"{name} {{instance}}",
                            )
                            for name in ("duplicates", "rejects")
                        ]
                        + [Query("sum by (instance) (colmet_collector_missing)", "missing batches {instance}")],
                        f"{_SCRAPES} Duplicates do no harm: what was not acknowledged in time comes again.",
                    ),
                    Panel(
                        "Age of batches as they come",
                        [Query("topk(10, max by (sender) (colmet_collector_sender_lag_seconds))", "{sender}", "s")],
                        "The ten nodes with the oldest. Below 0: a node's clock is ahead.",
                    ),
                    Panel(
                        "Outputs that are there",
                        [Query("min by (instance, output) (colmet_collector_output_up)", "{output} {instance}")],
                        "1: it writes; 0: rows wait for it.",
                    ),
                    Panel(
                        "How far outputs are behind",
                        [
                            Query(
                                "max by (instance, output) (colmet_collector_output_behind_seconds)",
                                "{output} {instance}",
                                "s",
                            )
                        ],
                    ),
                    Panel(
                        "Rows written",
                        [
                            Query(
                                f"sum by (instance, output) ({_rate('colmet_collector_output_written_rows_total')})",
                                "{output} {instance}",
                            )
                        ],
                    ),
                    Panel(
                        "Rows given up",
                        [
                            Query(
                                f"sum by (instance, output) ({_grown('colmet_collector_output_dropped_rows_total')})",
                                "{output} {instance}",
                            )
                        ],
                        "Anything above 0 is lost.",
                    ),
                ],
            ),
            Section(
                "Nodes that tell Prometheus themselves",
                [
                    Panel(
                        "Backends that are off",
                        [
                            Query(
                                "sum by (backend) (1 - colmet_node_backend_up)",
                                "{backend}",
                            )
                        ],
                        "Nodes on which it is asked for and what it needs is absent.",
                    ),
                    Panel(
                        "CPU used by colmet-node",
                        [
                            Query(
                                "topk(10, rate(colmet_node_cpu_seconds_total[$__rate_interval]))",
                                "{instance}",
                                "percentunit",
                            )
                        ],
                        "Of one core; the ten with the most.",
                    ),
                ],
            ),
        ],
    ),
    Dashboard(
        "node",
        "Colmet: node",
        "A node's jobs, and how its colmet-node is.",
        [
            Section(
                "Jobs",
                [
                    Panel(
                        "CPU cores used",
                        [Line("cgroup_default", "cpu_usage", "job {job} {host}", ("host", "job"))],
                        kind="stack",
                    ),
                    Panel(
                        "Memory",
                        [Line("cgroup_default", "memory_current", "job {job} {host}", ("host", "job"))],
                        kind="stack",
                    ),
                    Panel(
                        "Memory of their processes",
                        [Line("jobprocstats_default", "memory_used", "job {job} {host}", ("host", "job"))],
                        _OF_PROCESSES,
                        "stack",
                    ),
                    Panel(
                        "Bytes to and from storage",
                        [
                            Line("taskstats_default", "read_bytes", "read by job {job} {host}", ("host", "job")),
                            Line("taskstats_default", "write_bytes", "written by job {job} {host}", ("host", "job")),
                        ],
                    ),
                    Panel("Jobs", [Query(f"max by (host) ({agent('jobs')}{_OF_HOST})", "{host}")]),
                ],
            ),
            Section(
                "colmet-node",
                [
                    Panel(
                        "Backends that measure",
                        [Query(f"min by (host, backend) (colmet_node_backend_up{_OF_HOST})", "{backend} {host}")],
                        "1: it measures; 0: what it needs is absent, and it is tried again.",
                    ),
                    Panel(
                        "Time that a sample takes",
                        [Query(f"max by (host) (colmet_node_sample_duration_seconds{_OF_HOST})", "{host}", "s")],
                    ),
                    Panel(
                        "CPU used",
                        [
                            Query(
                                f"max by (host) ({_rate('colmet_node_cpu_seconds_total')}{_OF_HOST})",
                                "all {host}",
                                "percentunit",
                            ),
                            Query(
                                f"max by (host, backend) ({_rate('colmet_node_backend_cpu_seconds_total')}{_OF_HOST})",
                                "{backend} {host}",
                                "percentunit",
                            ),
                        ],
                        "Of one core.",
                    ),
                    Panel(
                        "What went wrong",
                        [
                            Query(f"max by (host) ({_grown(agent(column))}{_OF_HOST})", f"{column} {{host}}")
                            for column in ("overruns", "discovery_failures", "batches_dropped")
                        ]
                        + [
                            Query(
                                f"max by (host, backend) ({_grown('colmet_node_backend_failures_total')}{_OF_HOST})",
                                "failures of {backend} {host}",
                            )
                        ],
                        _SCRAPES,
                    ),
                    Panel(
                        "Batches that wait for a collector",
                        [Query(f"max by (host) ({agent('batches_waiting')}{_OF_HOST})", "{host}")],
                    ),
                    Panel(
                        "How long the oldest batch has waited",
                        [Query(f"max by (host) (colmet_node_spool_oldest_seconds{_OF_HOST})", "{host}", "s")],
                    ),
                ],
            ),
        ],
    ),
    Dashboard("job", "Colmet: job", "What a job does, on each of its nodes.", _of_jobs(("host",), "{host}", _SCRAPES)),
)
