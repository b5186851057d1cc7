"""Memory that hosts have, that jobs reserved of it, and that they used: counted from /qhost and /qstat.

A job reserves what it asked for once for each slot that it has on a host, whatever entries the host has of it. What is
not known is None, and adds nothing to a sum.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from colmet.batch.qmem import Host, Hosts, JobOnHost, Owners
from colmet.stored.names import natural

UNKNOWN = "-"  # also in what the servers send
GIB = float(1 << 30)
HUGE = float(1 << 63)  # bytes: no host has them
CROWDED = 0.25  # of a host's memory: where more is reserved, its name is marked
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{0,18})?)([KMGTkmgt]?)", re.ASCII)
# as Grid Engine has them: the large letters are powers of 1024
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12} | {
    letter: float(1 << shift) for letter, shift in (("K", 10), ("M", 20), ("G", 30), ("T", 40))
}
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d\d?)?", re.ASCII)


class Wanted(NamedTuple):
    """What is to be shown. Hosts without a job or user that is named are not.

    Attributes:
        host: only this one; "" for all.
        job: only this one, or such a task of it (17.3); "" for all.
        owner: only this user's jobs; "" for all.
    """

    host: str = ""
    job: str = ""
    owner: str = ""


class JobMemory(NamedTuple):
    """A job, or a task of an array, on a host.

    Attributes:
        job: its number; of an array's task such as 17.3.
        owner: whose it is.
        name: of the job.
        master: whether its master task is there.
        slots: that it has there.
        used: bytes, the most so far; None where it is not known.
        reserved: bytes; None where it asked for nothing, or nobody says.
    """

    job: str
    owner: str
    name: str
    master: bool
    slots: int
    used: float | None
    reserved: float | None

    @property
    def share(self) -> float | None:
        """What is used of what is reserved."""
        return None if self.used is None or not self.reserved else self.used / self.reserved


class HostMemory(NamedTuple):
    """A host.

    Attributes:
        host: its name.
        processors: that it has; None where nobody says.
        total: bytes that it has; None where nobody says.
        jobs: those that are shown, by number.
        reserved_by_all: bytes, by all of its jobs, also those that are not shown.
        jobs_left_out: how many those are.
        knows_all: whether all of its jobs are known: otherwise what is available is not.
    """

    host: str
    processors: int | None
    total: float | None
    jobs: Sequence[JobMemory]
    reserved_by_all: float
    jobs_left_out: int = 0
    knows_all: bool = True

    @property
    def claimed(self) -> float:
        """Bytes that the shown jobs reserved, or used beyond it: job by job, as one's rest is no other's."""
        return math.fsum([max(job.used or 0.0, job.reserved or 0.0) for job in self.jobs])

    @property
    def used(self) -> float | None:
        """Bytes that the shown jobs used at most; None where that is known of none of them."""
        return _total([job.used for job in self.jobs])

    @property
    def reserved(self) -> float | None:
        """Bytes that the shown jobs reserved; None where that is known of none of them."""
        return _total([job.reserved for job in self.jobs])

    @property
    def share(self) -> float | None:
        """What is used of what is reserved, by the shown jobs of which both are known; 0 where there is no job."""
        both = [(job.used, job.reserved) for job in self.jobs if job.used is not None and job.reserved]
        reserved = math.fsum([reserved for _, reserved in both])
        if not both:
            return None if self.jobs else 0.0
        return math.fsum([used for used, _ in both]) / reserved

    @property
    def available(self) -> float | None:
        """Bytes that no job reserved; less than none where more is reserved than there is."""
        return self.total - self.reserved_by_all if self.total is not None and self.knows_all else None

    @property
    def slots(self) -> int:
        """Of the shown jobs."""
        return sum([job.slots for job in self.jobs])

    @property
    def is_crowded(self) -> bool:
        """Whether the shown jobs reserved more than a quarter of its memory."""
        return self.total is not None and (self.reserved or 0.0) > CROWDED * self.total


class Memory(NamedTuple):
    """All of it.

    Attributes:
        hosts: by name.
        untold: jobs on hosts, of those that are shown, of which nobody says what they use there.
        unread: values that are no numbers, and count as not known.
    """

    hosts: Sequence[HostMemory]
    untold: int
    unread: int


def _total(values: Sequence[float | None]) -> float | None:
    """A sum; of nothing it is 0."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known or not values else None


def parse_size(text: str) -> float | None:
    """Bytes of a size as Grid Engine prints it, such as 47.3G; None of what is none."""
    match = _SIZE.fullmatch(text)
    return _sane(float(match[1]) * _UNITS[match[2]]) if match else None


def count(hosts: Hosts, owners: Owners, wanted: Wanted, knows_all: bool = True) -> Memory:
    """What each host and each job has.

    Args:
        hosts: of /qhost.
        owners: of /qstat.
        wanted: what is to be shown.
        knows_all: whether whoever asked was told of all jobs, and not only of some.
    """
    counting = _Counting(owners)
    found = []
    for name in sorted(hosts, key=natural):
        if wanted.host in ("", name):
            host = counting.host(name, hosts[name], wanted, knows_all)
            if host.jobs or not (wanted.job or wanted.owner):
                found.append(host)
    return Memory(found, sum([job.used is None for host in found for job in host.jobs]), counting.unread)


class _Counting:
    """Counts, and counts the values that it cannot read.

    Args:
        owners: of /qstat. What a job asked for is looked up by its number, which no other job has.
    """

    def __init__(self, owners: Owners) -> None:
        self.unread = 0
        self._requests = {job: one for owner in owners.values() for job, one in owner["jobs"].items()}

    def host(self, name: str, host: Host, wanted: Wanted, knows_all: bool) -> HostMemory:
        """A host with the jobs that are wanted."""
        jobs = [
            one for number in sorted(host["jobs"], key=natural) for one in self._job(name, number, host["jobs"][number])
        ]
        shown = [job for job in jobs if _is_wanted(job, wanted)]
        return HostMemory(
            host=name,
            processors=self._processors(host["num_proc"]),
            total=self._read(host["mem_total"], parse_size),
            jobs=shown,
            reserved_by_all=math.fsum([job.reserved for job in jobs if job.reserved is not None]),
            jobs_left_out=len(jobs) - len(shown),
            knows_all=knows_all,
        )

    def _job(self, host: str, number: str, job: JobOnHost) -> Iterator[JobMemory]:
        """A job on a host; of an array each of its tasks there."""
        request = self._requests.get(number)
        asked = request["requested_h_vmem_dblval"] if request is not None else 0.0
        of_it = request["hostname"].get(host, {}) if request is not None else {}
        # of an array the count is of each task's slots; a task may be there repeatedly, where shares are unequal
        tasks = Counter(job["taskid"]) or {"": 1}
        for task in sorted(tasks, key=natural):
            texts = [of_it[task]] if task in of_it else [] if task else list(of_it.values())
            used = [value for value in [self._read(text, _parse_number) for text in texts] if value is not None]
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
        """A number; None where there is none, or where it is none, which is counted."""
        if text in ("", UNKNOWN):
            return None
        value = parse(text)
        self.unread += value is None
        return value

    def _processors(self, text: str) -> int | None:
        value = self._read(text, _parse_number)
        return None if value is None else int(value)


def _parse_number(text: str) -> float | None:
    return _sane(float(text)) if _NUMBER.fullmatch(text) else None


def _sane(value: float) -> float | None:
    return value if value < HUGE else None


def _is_wanted(job: JobMemory, wanted: Wanted) -> bool:
    return wanted.owner in ("", job.owner) and wanted.job in ("", job.job, job.job.partition(".")[0])
