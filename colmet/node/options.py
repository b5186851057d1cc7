"""The command line of colmet-node."""

from __future__ import annotations

from collections.abc import Sequence

from colmet.common.config import cli
from colmet.common.daemon import control, metrics_http, startup
from colmet.common.transport import curve
from colmet.node import counter_names, live_config, once, rust_configuration
from colmet.node.backend import InputBackend
from colmet.node.delivery import link
from colmet.node.jobs.places import DEFAULT_PATTERN

# Options of Colmet 0.6: its command lines may abbreviate these.
OPTIONS_06 = frozenset(
    (
        *("--cgroup", "--cpuset_rootpath", "--disable-procstats", "--enable-infiniband", "--enable-ipmipower"),
        *("--enable-jobproc", "--enable-lustre", "--enable-nvidia", "--enable-perfhw", "--enable-RAPL"),
        *("--enable-temperature", "--help", "--ipmipower-cmd", "--lustre-prefix", "--omnipath", "--perfhw-list"),
        *("--pid", "--regex_job_id", "--sample-period", "--tid", "--verbose", "--version", "--zeromq-hwm"),
        *("--zeromq-linger", "--zeromq-uri"),
    )
)


def build_parser(backends: Sequence[type[InputBackend]]) -> cli.Parser:
    """Return the command line of colmet-node."""
    parser = cli.Parser(
        prog="colmet-node",
        description="Measure the resource use of each job on this compute node, and send it to colmet-collector. Run "
        "it as root: measuring other users' jobs requires its rights.",
    )
    parser.older = OPTIONS_06
    startup.add_common_options(parser)
    once.add_options(parser)
    sending = parser.add_argument_group("where samples are sent")
    link.add_options(sending)
    startup.add_queue_options(sending)
    curve.add_options(parser.add_argument_group("keys"))
    _add_jobs(parser.add_argument_group("jobs"))
    _add_unit(parser.add_argument_group("tasks to measure together, as job 0"))
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="seconds between two samples (default: %(default)g)",
    )
    for backend in backends:
        backend.add_options(group)
    counter_names.add_options(group)
    daemon = parser.add_argument_group("how colmet-node runs")
    control.add_options(daemon, "node")
    metrics_http.add_options(daemon)
    live_config.add_options(daemon)
    rust_configuration.add_options(daemon)
    daemon.add_argument(
        "--keep-privileges",
        action="store_true",
        help=cli.Rare("keep all rights of root (default: only those required for measuring; -v logs them)"),
    )
    return parser


def _add_jobs(jobs: cli.Options) -> None:
    jobs.add_argument(
        "--cpuset_rootpath",
        "--cpuset-rootpath",
        metavar="PATH",
        action="append",
        help="search for jobs only in this directory of one cgroup for each job; of cgroup v1 or v2; repeatable "
        "(default: the jobs of OAR and Slurm, wherever cgroups are mounted)",
    )
    jobs.add_argument(
        "--regex_job_id",
        "--regex-job-id",
        metavar="RE",
        action="append",
        help="regular expression for the name of a job's directory, with the job id as its first group; repeatable: "
        f"the first match counts (default: {DEFAULT_PATTERN.replace('%', '%%')})",
    )


def _add_unit(unit: cli.Options) -> None:
    unit.add_argument(
        "-c",
        "--cgroup",
        metavar="PATH",
        action="append",
        default=[],
        help="measure all tasks in this cgroup and below",
    )
    unit.add_argument(
        "-p", "--pid", metavar="PID", action="append", default=[], type=cli.whole_number(1), help="measure this process"
    )
    unit.add_argument(
        "-t", "--tid", metavar="TID", action="append", default=[], type=cli.whole_number(1), help="measure this thread"
    )
