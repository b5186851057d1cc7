"""The interface of every input backend."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from colmet.common.cli import Options
from colmet.common.schema import Sample, Schema
from colmet.node.host import Host
from colmet.node.jobs import Job


class InputBackend(ABC):
    """Measures one table.

    Life: built from the command line; `open()`, again with back-off for as long as it raises BackendUnavailable;
    `sample()` at every tick; `close()`. Between ticks, for those that have something to do then: `drain()`,
    `notice()`, `last()`.

    Attributes:
        schema: of the table.
        fd: readable when `drain()` has something to take in; -1 where there is none, or while it is closed.
    """

    name: ClassVar[str]
    schema: Schema
    fd: int = -1

    @classmethod
    @abstractmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that this backend uses."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> InputBackend | None:
        """The backend that the command line asks for, or None where it does not."""

    @abstractmethod
    def open(self) -> None:
        """Get ready to measure.

        Raises:
            BackendUnavailable: this node lacks what it needs; the text says what, and the remedy.
        """

    @abstractmethod
    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job that has something to tell, or one of job 0 for the node.

        Raises:
            ParseError: a file has another form.
        """

    def drain(self) -> Iterable[int]:
        """Take in what has come since; the ids of jobs that may be about to end."""
        return ()

    def notice(self, job: Job) -> None:  # noqa: B027 - a backend may have nothing to do then
        """A job's tasks have changed between ticks: look at what may be gone by the next one."""

    def last(self, job: Job) -> Sample | None:
        """A job's cgroup has gone: its last row, or None where it never had one. Nothing of it is kept."""
        return None

    def counters(self) -> Mapping[str, int]:
        """What it counts beside its rows since the agent's start, by column of `agent_default`."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give everything back; also after a failed open, also twice."""
