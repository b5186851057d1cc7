"""The kernel's accounting of each task: CPU time, delays, faults, memory integrals, I/O.

The kernel sums it up by job where it takes the programs of lib_bpf, which is exact and costs next to nothing
(`KernelAccounting`); elsewhere its answers and exit records are added up here (`NetlinkAccounting`). The rows are the
same.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import OnceLog
from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host
from colmet.common.schema import Sample
from colmet.common.tables.tasks import TASKSTATS as SCHEMA
from colmet.common.tables.tasks import TASKSTATS_COUNTERS
from colmet.node.accounting.kernel_accounting import KernelAccounting
from colmet.node.accounting.netlink_accounting import NetlinkAccounting
from colmet.node.backend import InputBackend, JobValue
from colmet.node.jobs.job import Job
from colmet.node.jobs.source import JobSource
from colmet.node.kernel.job_accounting import pin_directory, remove_pins
from colmet.node.state import DIRECTORY

log = logging.getLogger(__name__)

AUTO, KERNEL, NETLINK = SOURCES = ("auto", "kernel", "netlink")

NOTES = """\
A task's `*_delay_total` cannot exceed the task's age. A larger growth, which Linux 6.12 and later may count for block
I/O (`colmet doctor` tests it), is dropped and counted (`delays_implausible` of `agent_default`); later growth counts
again. `*_count` is not corrected.

By netlink, `*_char` and `*_syscalls` of each task are cut to multiples of 1,024: a task with fewer calls has 0."""


class TaskstatsBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job that has or had a task, from the better source that this node has.

    Args:
        state_dir: directory of the totals kept across a restart of the agent; "" for none.
        source: one of `SOURCES`: with `AUTO`, the kernel's sums by job where it has them, else netlink.
    """

    name = "taskstats"
    schema = SCHEMA
    agent_counters = TASKSTATS_COUNTERS
    notes = NOTES
    provides = ("cpu_attributed", "memory_and_tasks")
    capabilities = frozenset(("CAP_NET_ADMIN",))  # generic netlink, fork events, buffers beyond the system's limit
    better_with = frozenset(("CAP_BPF", "CAP_PERFMON"))  # the programs of lib_bpf

    def __init__(self, host: Host, state_dir: str = "", source: str = AUTO) -> None:
        self._host = host
        self._state_dir = state_dir
        self._source = source
        self._jobs: JobSource | None = None
        self._once = OnceLog(log)
        self._accounting: KernelAccounting | NetlinkAccounting = NetlinkAccounting(host, state_dir)

    @classmethod
    def add_options(cls, parser: Options) -> None:
        parser.add_argument(
            "--task-accounting",
            choices=SOURCES,
            default=AUTO,
            help=Rare(
                "what adds up the tasks of a job: the kernel, exact for jobs of any length; netlink: answers and exit "
                "records, added up by colmet-node; auto: the kernel where it can (default)"
            ),
        )
        parser.add_argument(
            "--state-dir",
            metavar="DIR",
            help=Rare(
                "keep the jobs' totals here across a restart of colmet-node; '': nowhere (default: the unit's "
                f"RuntimeDirectory=, else {DIRECTORY})"
            ),
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> TaskstatsBackend:
        state_dir = options.state_dir
        if state_dir is None:
            state_dir = os.environ.get("RUNTIME_DIRECTORY") or DIRECTORY
        return cls(host, state_dir, options.task_accounting)

    def use_jobs(self, jobs: JobSource) -> None:
        """Have the kernel's programs follow the jobs of this source; without this call, netlink is used."""
        self._jobs = jobs

    def open(self) -> None:
        """Load the kernel's programs, or connect to netlink."""
        self.close()
        if self._source != NETLINK and self._jobs is not None:
            kernel = KernelAccounting(self._host, self._jobs, self._state_dir)
            try:
                kernel.open()
            except BackendUnavailable as err:
                kernel.close()
                if self._source == KERNEL:
                    raise
                self._once.warning("tasks are added up from netlink, which misses what short ones use: %s", err)
            else:
                self._accounting = kernel
                self.fd = kernel.fd
                return
        if self._jobs is not None:
            remove_pins(pin_directory())  # of an earlier start: nobody would read what they count
        netlink = NetlinkAccounting(self._host, self._state_dir)
        self._accounting = netlink
        netlink.open()
        self.fd = netlink.fd

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        rows = self._accounting.sample(jobs)
        self.fd = self._accounting.fd  # netlink may have begun to listen
        return rows

    def drain(self) -> Iterable[int]:
        return self._accounting.drain()

    def notice(self, job: Job) -> None:
        self._accounting.notice(job)

    def last(self, job: Job) -> Sample | None:
        return self._accounting.last(job)

    def job_value(self, name: str) -> JobValue:
        """Return `cpu_attributed`, CPU time in ns of its tasks, or `memory_and_tasks`, None without the kernel."""
        return {
            "cpu_attributed": lambda job: self._accounting.cpu_attributed(job),
            "memory_and_tasks": lambda job: self._accounting.memory_and_tasks(job),
        }[name]

    def counters(self) -> Mapping[str, int]:
        return self._accounting.counters()

    def close(self) -> None:
        """Keep what a next start needs, and release the source; can be called twice."""
        self._accounting.close()
        self.fd = -1
