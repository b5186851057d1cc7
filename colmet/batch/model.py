"""Queues and jobs, common to all batch systems."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from colmet.common.errors import ColmetError

log = logging.getLogger(__name__)


class BatchError(ColmetError):
    """A batch system does not answer, or in an unknown form; the message suggests a remedy."""


class Queue(NamedTuple):
    """A queue in its present state."""

    name: str  # of the queue
    idle: int  # waiting jobs
    running: int  # running jobs
    held: int  # jobs on hold
    cores: int | None = None  # cores of running jobs; None if unknown
    memory_mb: int | None = None  # memory of running jobs in MiB; None if unknown


class BatchJob(NamedTuple):
    """A job in its present or final state."""

    id: str  # as the batch system's own commands print it, such as "4242", "17.3" (array task) or "123.0"
    user: str  # its owner
    state: str  # unexpanded, idle, running, removed, finished, held, submission_err or unknown
    runtime_s: int  # seconds it has run; 0 while it waits
    queue: str | None = None  # its queue or partition; None if unknown


class BatchSystem(ABC):
    """A batch system, queried with its own commands.

    Every method raises `BatchError` if no answer is available.

    Attributes:
        name: of the batch system.
        left_out: number of jobs and queues skipped so far because of an unknown form.
    """

    name: ClassVar[str]
    left_out: int = 0

    def leave_out(self, jobs: int) -> None:
        """Count skipped jobs, and log their number."""
        if jobs:
            self.left_out += jobs
            log.warning("jobs of an unknown form are skipped system=%s count=%d", self.name, jobs)

    @abstractmethod
    def queues(self) -> Sequence[Queue]:
        """Return every queue."""

    @abstractmethod
    def jobs(self) -> Sequence[BatchJob]:
        """Return every waiting, running or held job."""

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return jobs that finished within the last `within_s` seconds; empty if the system does not report them."""
        del within_s
        return []
