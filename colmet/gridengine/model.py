"""Total, reserved and used memory of hosts and jobs, computed from /qhost and /qstat.

A job reserves its request once for each slot on a host, whatever the host's number of entries for it. Unknown values
are None, and add nothing to a sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from colmet.batch.gridengine_memory import BatchHost, Hosts, JobOnHost, Owners, parse_memory, parse_number
from colmet.stored.series import natural

UNKNOWN = "-"  # also in the servers' answers
GIB = float(1 << 30)
CROWDED = 0.25  # of a host's memory: if more is reserved, its name is marked


class Wanted(NamedTuple):
    """Selection of the output. Hosts without the named job or user are skipped."""

    host: str = ""  # only this one; "" for all
    job: str = ""  # only this one, or such a task of it (17.3); "" for all
    owner: str = ""  # only this user's jobs; "" for all


class JobMemory(NamedTuple):
    """A job, or a task of an array, on a host."""

    job: str  # its number; of an array's task such as 17.3
    owner: str  # name of the user
    name: str  # of the job
    master: bool  # whether its master task is there
    slots: int  # its slots there
    used: float | None  # peak bytes so far; None if unknown
    reserved: float | None  # bytes; None without a request, or if unknown

    @property
    def share(self) -> float | None:
        """Return the used share of its reserved memory."""
        return None if self.used is None or not self.reserved else self.used / self.reserved


class HostMemory(NamedTuple):
    """A host."""

    host: str  # its name
    processors: int | None  # number of processors; None if unknown
    total: float | None  # its memory in bytes; None if unknown
    jobs: Sequence[JobMemory]  # the shown ones, by number
    reserved_by_all: float  # bytes, of all of its jobs, including hidden ones
    jobs_left_out: int = 0  # number of hidden jobs
    knows_all: bool = True  # whether all of its jobs are known: otherwise the available memory is not

    @property
    def claimed(self) -> float:
        """Return bytes reserved by the shown jobs, or used beyond: job by job, as reserves are not shared."""
        return math.fsum([max(job.used or 0.0, job.reserved or 0.0) for job in self.jobs])

    @property
    def used(self) -> float | None:
        """Return peak bytes used by the shown jobs; None if unknown for all of them."""
        return _total([job.used for job in self.jobs])

    @property
    def reserved(self) -> float | None:
        """Return bytes reserved by the shown jobs; None if unknown for all of them."""
        return _total([job.reserved for job in self.jobs])

    @property
    def share(self) -> float | None:
        """Return the used share of the reserved memory, over shown jobs with both values; 0 without jobs."""
        both = [(job.used, job.reserved) for job in self.jobs if job.used is not None and job.reserved]
        reserved = math.fsum([reserved for _, reserved in both])
        if not both:
            return None if self.jobs else 0.0
        return math.fsum([used for used, _ in both]) / reserved

    @property
    def available(self) -> float | None:
        """Return unreserved bytes; negative if more is reserved than the total."""
        return self.total - self.reserved_by_all if self.total is not None and self.knows_all else None

    @property
    def slots(self) -> int:
        """Return the slots of the shown jobs."""
        return sum([job.slots for job in self.jobs])

    @property
    def is_crowded(self) -> bool:
        """Return whether the shown jobs reserved more than a quarter of its memory."""
        return self.total is not None and (self.reserved or 0.0) > CROWDED * self.total


class MemoryReport(NamedTuple):
    """Memory of all hosts."""

    hosts: Sequence[HostMemory]  # by name
    untold: int  # shown jobs, per host, with unknown usage there
    unread: int  # invalid numbers, counted as unknown


def _total(values: Sequence[float | None]) -> float | None:
    """Return the sum of the known values; 0 for no values, None if all are unknown."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known or not values else None


def count(hosts: Hosts, owners: Owners, wanted: Wanted, knows_all: bool = True) -> MemoryReport:
    """Return the memory of each host and each job; `knows_all`: the answers are of all jobs, and not only of some."""
    counting = _Counting(owners)
    found = []
    for name in sorted(hosts, key=natural):
        if wanted.host in ("", name):
            host = counting.host(name, hosts[name], wanted, knows_all)
            if host.jobs or not (wanted.job or wanted.owner):
                found.append(host)
    return MemoryReport(found, sum([job.used is None for host in found for job in host.jobs]), counting.unread)


class _Counting:
    """Computation of the figures, with a count of invalid values."""

    def __init__(self, owners: Owners) -> None:
        self.unread = 0
        # a job's number is unique
        self._requests = {job: one for owner in owners.values() for job, one in owner["jobs"].items()}

    def host(self, name: str, host: BatchHost, wanted: Wanted, knows_all: bool) -> HostMemory:
        """Return a host with the selected jobs."""
        jobs = [
            one for number in sorted(host["jobs"], key=natural) for one in self._job(name, number, host["jobs"][number])
        ]
        shown = [
            job
            for job in jobs
            if wanted.owner in ("", job.owner) and wanted.job in ("", job.job, job.job.partition(".")[0])
        ]
        processors = self._read(host["num_proc"], parse_number)
        return HostMemory(
            host=name,
            processors=None if processors is None else int(processors),
            total=self._read(host["mem_total"], parse_memory),
            jobs=shown,
            reserved_by_all=math.fsum([job.reserved for job in jobs if job.reserved is not None]),
            jobs_left_out=len(jobs) - len(shown),
            knows_all=knows_all,
        )

    def _job(self, host: str, number: str, job: JobOnHost) -> Iterator[JobMemory]:
        """Yield a job on a host; of an array, each of its tasks there."""
        request = self._requests.get(number)
        asked = request["requested_h_vmem_dblval"] if request is not None else 0.0
        of_it = request["hostname"].get(host, {}) if request is not None else {}
        # of an array the count is of each task's slots; a task is listed repeatedly if shares are unequal
        tasks = Counter(job["taskid"]) or {"": 1}
        for task in sorted(tasks, key=natural):
            texts = [of_it[task]] if task in of_it else [] if task else list(of_it.values())
            used = [value for value in [self._read(text, parse_number) for text in texts] if value is not None]
            slots = max(job["jobcount"], 1) * tasks[task] if task else job["jobcount"]
            yield JobMemory(
                job=f"{number}.{task}" if task else number,
                owner=job["owner"],
                name=job["jobname"],
                master=job["master"],
                slots=slots,
                used=math.fsum(used) if used else None,
                reserved=asked * slots if asked else None,
            )

    def _read(self, text: str, parse: Callable[[str], float | None]) -> float | None:
        """Return a number; None if missing or invalid; an invalid one is counted."""
        if text in ("", UNKNOWN):
            return None
        value = parse(text)
        self.unread += value is None
        return value
