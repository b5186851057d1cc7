"""The documents that are sent, field by field; pure functions.

Every document begins with `token`, `kind` and `cluster`, in this order. What sends it fills in `token`, which is None
here. None of them holds a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from colmet.batch.model import BatchJob, Queue

Document = dict[str, Any]

JUPYTER_FILE, SSH_FILE, HOST_FILE, BATCH_FILE = "jupyter-debug.json", "ssh.json", "host.json", "condor.json"


class Group(NamedTuple):
    """Documents that belong together.

    Attributes:
        file: that -d writes them to.
        documents: in the order in which they are sent.
    """

    file: str
    documents: list[Document]


class Space(NamedTuple):
    """What fits into a file system.

    Attributes:
        mount: its path.
        device: as the table of mounts names it, without `/dev/`; None where the path is no mount.
        total: bytes.
        used: bytes.
        free: bytes, for users other than root.
    """

    mount: str
    device: str | None
    total: int
    used: int
    free: int


class Traffic(NamedTuple):
    """What all network interfaces sent and received since the measurement before.

    Attributes:
        sent: bytes.
        received: bytes.
        interval_s: seconds, in thousandths.
    """

    sent: int
    received: int
    interval_s: float


def _document(kind: str, cluster: str, **fields: Any) -> Document:
    return {"token": None, "kind": kind, "cluster": cluster, **fields}


def jupyter(kind: str, cluster: str, users: Sequence[str]) -> Document:
    """Users of Jupyter notebooks.

    Args:
        kind: "jupyter-ml" or "jupyter-coffea".
        cluster: name of the facility.
        users: each once.
    """
    return _document(kind, cluster, jupyter_user_count=len(users), users=list(users))


def ssh(cluster: str, login_node: str, users: Sequence[str]) -> Document:
    """Users who are logged in; one who is listed twice counts twice.

    Args:
        cluster: name of the facility.
        login_node: name of this machine.
        users: in the order of the commands that told them.
    """
    return _document("ssh", cluster, login_node=login_node, ssh_user_count=len(users), users=list(users))


def cpu(cluster: str, login_node: str, load: float) -> Document:
    """The load average of one minute."""
    return _document("CPU", cluster, login_node=login_node, load=load)


def memory(cluster: str, login_node: str, total: int, available: int) -> Document:
    """The memory of this machine, and what of it can still be had without swapping, in bytes."""
    return _document("MEM", cluster, login_node=login_node, total=total, available=available)


def network(cluster: str, login_node: str, traffic: Traffic) -> Document:
    """What went over all network interfaces since the measurement before."""
    counted = {"sent": traffic.sent, "received": traffic.received, "interval": traffic.interval_s}
    return _document("NETWORK", cluster, login_node=login_node, network=counted)


def disk(cluster: str, login_node: str, space: Space) -> Document:
    """A file system; without `device` where its path is no mount.

    Args:
        cluster: name of the facility.
        login_node: name of this machine.
        space: whose total is not 0.
    """
    device = {} if space.device is None else {"device": space.device}
    return _document(
        "DISK", cluster, login_node=login_node, **device, mount=space.mount, total=space.total, used=space.used,
        free=space.free, utilization=space.used / space.total,
    )  # fmt: skip


def queue(cluster: str, of_it: Queue) -> Document:
    """A queue; `allocated_cores` and `allocated_mem` (MiB) are left out where they cannot be told."""
    allocated = {"allocated_cores": of_it.cores, "allocated_mem": of_it.memory_mb}
    return _document(
        "condorqueue", cluster, queue=of_it.name, idle=of_it.idle, running=of_it.running, held=of_it.held,
        **{name: value for name, value in allocated.items() if value is not None},
    )  # fmt: skip


def job(cluster: str, of_it: BatchJob, user: str) -> Document:
    """A job that waits, runs or is held.

    Args:
        cluster: name of the facility.
        of_it: the job.
        user: its owner, as it is to be shown.
    """
    return _document("condorjob", cluster, users=user, Id=of_it.id, Runtime=of_it.runtime_s, state=of_it.state)


def ended_job(cluster: str, of_it: BatchJob, user: str) -> Document:
    """A job that finished lately; its state comes first."""
    return _document("condorjob", cluster, state="finished", users=user, Id=of_it.id, Runtime=of_it.runtime_s)
