"""Memory by host, owner and job from Colmet's own data, in the structure of /qhost and /qstat.

For OAR and Slurm: a job's slots on a host are its CPUs there, and its reserved memory is its memory limit.
"""

from __future__ import annotations

import math
import pwd
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from colmet.batch.gridengine_memory import BatchHost, Hosts, JobOnHost, Owner, Owners, RequestedJob
from colmet.common.live.summary import JobUsage

UNKNOWN = "-"
GIB = float(1 << 30)


class _Row(NamedTuple):
    """A job on a host; None is unknown."""

    host: str
    job: str
    owner: str
    slots: int
    limit: float | None
    used: float | None


def hosts_of(jobs: JobUsage, nodes: Iterable[Mapping[str, Any]]) -> Hosts:
    """Return the data of /qhost from rows of `colmet.common.live.summary.measure_nodes`, and jobs of other nodes.

    The host of a job's first task is unknown, unless the job has only one host. Colmet knows no names of jobs. A node's
    processors are `cpus` of its row, missing from older nodes.
    """
    hosts: Hosts = {str(row["node"]): _host(row.get("cpus"), row.get("memory_total")) for row in nodes}
    rows = _rows(jobs)
    spread = Counter(row.job for row in rows)
    for row in rows:
        on: JobOnHost = {
            "jobcount": row.slots,
            "master": spread[row.job] == 1,
            "taskid": [],
            "owner": row.owner,
            "jobname": UNKNOWN,
        }
        hosts.setdefault(row.host, _host(None, None))["jobs"][row.job] = on
    return hosts


def _host(cpus: float | None, memory_bytes: float | None) -> BatchHost:
    return {
        "num_proc": UNKNOWN if cpus is None else f"{cpus:.0f}",
        # always in G: clients of QmemTools read the number only, not the letter
        "mem_total": UNKNOWN if memory_bytes is None else f"{memory_bytes / GIB:.1f}G",
        "jobs": {},
    }


def own_hosts(hosts: Hosts, only: str | None) -> Hosts:
    """Return the hosts with jobs of this user, and these jobs only; all if `only` is None."""
    if only is None:
        return hosts
    found: Hosts = {}
    for name, host in hosts.items():
        jobs = {number: job for number, job in host["jobs"].items() if job["owner"] == only}
        if jobs:
            found[name] = {**host, "jobs": jobs}
    return found


def uid_of(user: str) -> str:
    """Return the number of a user of this machine, as text; empty if the name is unknown."""
    try:
        return _known_uid(user)
    except (KeyError, ValueError):  # not there, or no name at all
        return ""


@lru_cache(maxsize=4096)  # a name service may be slow; unknown users are not cached
def _known_uid(user: str) -> str:
    return str(pwd.getpwnam(user).pw_uid)


def owners_of(jobs: JobUsage, uid: Callable[[str], str] = uid_of) -> Owners:
    """Return the data of /qstat; `uid` returns the number of a user, or an empty text.

    A job has one request for each of its slots: the sum of its limits over its hosts, divided by its slots there. If
    its hosts have different limits, only the reserved total of all is right. One without a limit requested nothing.
    """
    rows = _rows(jobs)
    spread = Counter(row.job for row in rows)
    limits: dict[str, float] = defaultdict(float)
    slots: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.limit is not None:
            limits[row.job] += row.limit
            slots[row.job] += row.slots
    owners: Owners = {}
    for row in rows:
        if row.owner not in owners:
            owners[row.owner] = Owner(uid=uid(row.owner), jobs={})
        asked = limits[row.job] / slots[row.job] if row.job in limits else 0.0
        request = RequestedJob(requested_h_vmem_strval=_size(asked), requested_h_vmem_dblval=asked, hostname={})
        job = owners[row.owner]["jobs"].setdefault(row.job, request)
        role = "master" if spread[row.job] == 1 else "slave"
        job["hostname"][row.host] = {} if row.used is None else {role: f"{row.used:.0f}"}
    return owners


def _size(value: float) -> str:
    """Return bytes in the form of a request, 2G; exact, so that an odd number has no letter. Empty for none."""
    whole = round(value)
    for letter, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if whole and whole % unit == 0:
            return f"{whole // unit}{letter}"
    return str(whole) if whole else ""


def _rows(jobs: JobUsage) -> list[_Row]:
    """Return a row for each job on each host; without data of no job."""
    cpus, limits, peaks, now = [jobs.values[key].tolist() for key in ("cpus", "memory_limit", "memory_peak", "memory")]
    numbers, hosts = jobs.job.tolist(), jobs.host.tolist()
    return [
        _Row(
            host=jobs.names[hosts[n]],
            job=str(number),
            owner=jobs.user[n] or UNKNOWN,
            slots=max(1, round(cpus[n])) if math.isfinite(cpus[n]) else 1,
            limit=_known(limits[n]),
            used=_known(peaks[n]) if math.isfinite(peaks[n]) else _known(now[n]),
        )
        for n, number in enumerate(numbers)
        if number
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0 else None
