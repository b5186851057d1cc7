"""Queues and jobs, as every batch system has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from colmet.common.errors import ColmetError


class BatchError(ColmetError):
    """A batch system does not answer, or not in a form that is known; the message says what to do."""


class Queue(NamedTuple):
    """A queue, as it is now.

    Attributes:
        name: of the queue.
        idle: jobs that wait.
        running: jobs that run.
        held: jobs that somebody holds back.
        cores: that running jobs have been given; None where it cannot be told.
        memory_mb: that running jobs have been given, in MiB; None where it cannot be told.
    """

    name: str
    idle: int
    running: int
    held: int
    cores: int | None = None
    memory_mb: int | None = None


class BatchJob(NamedTuple):
    """A job, as it is now, or as it ended.

    Attributes:
        id: as the batch system's own commands print it, such as "4242", "17.3" (array task) or "123.0".
        user: its owner.
        state: unexpanded, idle, running, removed, finished, held, submission_err or unknown.
        runtime_s: seconds that it has run; 0 for one that waits.
        queue: its queue or partition; None where it cannot be told.
    """

    id: str
    user: str
    state: str
    runtime_s: int
    queue: str | None = None


class BatchSystem(ABC):
    """A batch system that its own commands ask.

    Every method raises `BatchError` where no answer is to be had.

    Attributes:
        name: of the batch system.
        left_out: what the answers so far had in a form that is not known, and was left out: jobs, and queues.
    """

    name: ClassVar[str]
    left_out: int = 0

    @abstractmethod
    def queues(self) -> Sequence[Queue]:
        """Every queue."""

    @abstractmethod
    def jobs(self) -> Sequence[BatchJob]:
        """Every job that waits, runs or is held."""

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Jobs that finished within the last so many seconds; empty where the system does not tell."""
        del within_s
        return []
