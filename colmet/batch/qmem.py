"""Memory reserved and used, by host, owner and job, in the structure of QmemTools' server (`/qhost` and `/qstat`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class JobOnHost(TypedDict):
    """A job on a host."""

    jobcount: int  # its slots there; 1 for each host of an array job's task
    master: bool  # whether its master task is there
    taskid: list[str]  # numbers of its array tasks there, as texts; empty for a job that is no array
    owner: str  # name of the user
    jobname: str  # its name


class BatchHost(TypedDict):
    """A host."""

    num_proc: str  # its processors, as the batch system prints them; "-" if unknown
    mem_total: str  # its memory, as the batch system prints it, such as "47.3G"; "-" if unknown
    jobs: dict[str, JobOnHost]  # by number, as text


class RequestedJob(TypedDict):
    """Requested and peak memory of a job.

    Attributes:
        requested_h_vmem_strval: requested memory for each slot, such as "2G"; "" without a request.
        requested_h_vmem_dblval: the same in bytes; 0.0 without a request.
        hostname: host -> {"master": bytes as text, "slave": bytes as text}, or {task number: bytes as text} for an
            array job: the peak usage there.
    """

    requested_h_vmem_strval: str
    requested_h_vmem_dblval: float
    hostname: dict[str, dict[str, str]]


class Owner(TypedDict):
    """A user with jobs."""

    uid: str  # as text
    jobs: dict[str, RequestedJob]  # by number, as text


Hosts = dict[str, BatchHost]  # /qhost
Owners = dict[str, Owner]  # /qstat


def envelope(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in the form of QmemTools' server: no success without data."""
    if not data:
        return {"success": False, "message": f"No data for {name}", "data": {}}
    return {"success": True, "message": "", "data": dict(data)}
