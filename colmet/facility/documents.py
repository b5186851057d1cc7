"""The documents to send, field by field, and their files for -d.

Every document begins with `token`, `kind` and `cluster`, the facility's name, in this order. The sender fills in
`token`, None here. No document has a time.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from colmet.batch.systems import BatchJob, Queue
from colmet.common.errors import ColmetError

Document = dict[str, Any]

JUPYTER_FILE, SSH_FILE, HOST_FILE, BATCH_FILE = "jupyter-debug.json", "ssh.json", "host.json", "condor.json"
# others may be able to write in the directory, too
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DocumentGroup(NamedTuple):
    """Related documents."""

    file: str  # name of their file for -d
    documents: list[Document]  # in the order of sending


class Space(NamedTuple):
    """Space of a file system."""

    mount: str  # its path
    device: str | None  # as in the table of mounts, without `/dev/`; None if the path is not a mount
    total: int  # bytes
    used: int  # bytes
    free: int  # bytes, for users other than root


class Traffic(NamedTuple):
    """Traffic of all network interfaces since the previous measurement."""

    sent: int  # bytes
    received: int  # bytes
    interval_s: float  # seconds, in thousandths


def _document(kind: str, cluster: str, **fields: Any) -> Document:
    return {"token": None, "kind": kind, "cluster": cluster, **fields}


def jupyter(kind: str, cluster: str, users: Sequence[str]) -> Document:
    """Return the document of the users of Jupyter notebooks, each once; kind jupyter-ml or jupyter-coffea."""
    return _document(kind, cluster, jupyter_user_count=len(users), users=list(users))


def ssh(cluster: str, login_node: str, users: Sequence[str]) -> Document:
    """Return the document of users logged in on this machine; one listed twice counts twice."""
    return _document("ssh", cluster, login_node=login_node, ssh_user_count=len(users), users=list(users))


def cpu(cluster: str, login_node: str, load: float) -> Document:
    """Return the document of the load average of one minute."""
    return _document("CPU", cluster, login_node=login_node, load=load)


def memory(cluster: str, login_node: str, total: int, available: int) -> Document:
    """Return the document of this machine's memory, total and available without swapping, in bytes."""
    return _document("MEM", cluster, login_node=login_node, total=total, available=available)


def network(cluster: str, login_node: str, traffic: Traffic) -> Document:
    """Return the document of all network interfaces' traffic since the previous measurement."""
    counted = dict(zip(("sent", "received", "interval"), traffic))
    return _document("NETWORK", cluster, login_node=login_node, network=counted)


def disk(cluster: str, login_node: str, space: Space) -> Document:
    """Return the document of a file system with a total other than 0; without `device` if its path is not a mount."""
    device = {} if space.device is None else {"device": space.device}
    return _document(
        "DISK", cluster, login_node=login_node, **device, mount=space.mount, total=space.total, used=space.used,
        free=space.free, utilization=space.used / space.total,
    )  # fmt: skip


def queue(cluster: str, of_it: Queue) -> Document:
    """Return the document of a queue; `allocated_cores` and `allocated_mem` (MiB) are omitted if unknown."""
    allocated = {"allocated_cores": of_it.cores, "allocated_mem": of_it.memory_mb}
    return _document(
        "condorqueue", cluster, queue=of_it.name, idle=of_it.idle, running=of_it.running, held=of_it.held,
        **{name: value for name, value in allocated.items() if value is not None},
    )  # fmt: skip


def job(cluster: str, of_it: BatchJob, user: str) -> Document:
    """Return the document of a waiting, running or held job; `user` is its owner's name in the document."""
    return _document("condorjob", cluster, users=user, Id=of_it.id, Runtime=of_it.runtime_s, state=of_it.state)


def ended_job(cluster: str, of_it: BatchJob, user: str) -> Document:
    """Return the document of a recently finished job; its state comes first."""
    return _document("condorjob", cluster, state="finished", users=user, Id=of_it.id, Runtime=of_it.runtime_s)


def write_files(groups: Iterable[DocumentGroup], token: str | None, directory: str = ".") -> None:
    """Append each document to the file of its group: JSON indented by 4, nothing between two documents.

    A new file is for its owner alone, as it contains the token and names. ColmetError where a file cannot be written,
    is a link or not a regular file, belongs to another user, or others may read or write it.
    """
    for group in groups:
        if not group.documents:
            continue
        text = "".join([json.dumps({**document, "token": token}, indent=4) for document in group.documents])
        path = Path(directory, group.file)
        try:
            with open(os.open(path, _FLAGS, 0o600), "a", encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ColmetError(f"{path.absolute()} cannot be written: it is not a file")
                if status.st_uid != os.geteuid() or status.st_mode & 0o077 or status.st_nlink > 1:
                    raise ColmetError(
                        f"{path.absolute()} cannot be written: documents have names and a token, and others may read "
                        "this file; remove it, or run this in a directory of your own"
                    )
                file.write(text)
        except OSError as err:
            why = "it is a link" if err.errno == errno.ELOOP else err.strerror or err
            raise ColmetError(f"{path.absolute()} cannot be written: {why}") from err
