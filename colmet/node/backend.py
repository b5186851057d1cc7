"""The interface of every input backend."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from colmet.common.config.cli import Options, Parser
from colmet.common.host.capabilities import bits
from colmet.common.host.command import Command
from colmet.common.host.host import Host
from colmet.common.schema import Field, Sample, Schema
from colmet.common.tables import is_declared
from colmet.common.tables.agent import BACKEND_COUNTERS
from colmet.node.counter_names import CounterName
from colmet.node.jobs.job import Job

if TYPE_CHECKING:
    from colmet.node.jobs.source import JobSource

JobValue = Callable[[Job], Any]  # the last value of a job, as of this tick; None: missing


class InputBackend(ABC):
    """Interface of a backend that measures one table, or several related ones.

    Life: built from the command line; `open()`, retried with back-off while it raises BackendUnavailable; `sample()` at
    every tick; `close()`. Between ticks, optionally: `drain()`, `notice()`, `last()`.

    A blocking backend runs in a thread of its own (`runner.BackgroundBackend`): `open()`, `sample()` and `close()`
    may block there, and a tick during an unfinished `sample()` is skipped. It keeps no file of its host open
    (`Host.keep`), and reads from jobs only in `ask()`.
    """

    name: ClassVar[str]
    schema: Schema  # of the first table
    others: tuple[Schema, ...] = ()  # of further tables; a sample of one names it
    agent_counters: tuple[Field, ...] = ()  # columns of `agent_default` for `counters()`, see common.tables.agent
    notes: ClassVar[str] = ""  # text on the first table in addition to its columns, for docs/metrics.md
    blocking: ClassVar[bool] = False  # whether it may wait for a program, a device or a driver
    of_interval: ClassVar[bool] = False  # whether its rows are of the time since the last sample
    capabilities: frozenset[str] = frozenset()  # needed rights of root, by their names in capabilities(7)
    better_with: frozenset[str] = frozenset()  # rights of root without which it measures less well
    deadline_s: float = 30.0  # of a blocking backend: longest `sample()` before a failure is reported
    part: str = ""  # the measured part, if not everything is measured
    provides: ClassVar[tuple[str, ...]] = ()  # names of values of jobs for other backends, see `job_value`
    needs: ClassVar[tuple[str, ...]] = ()  # those read from other backends, see `use_value`; it is called after them
    fd: int = -1  # readable when `drain()` has work; -1 without such events, or while it is closed

    @classmethod
    @abstractmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that this backend uses."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> InputBackend | None:
        """Return the backend requested by the command line; None if not requested."""

    def open(self) -> None:  # noqa: B027 - a backend may have nothing to prepare
        """Get ready to measure.

        Raises:
            BackendUnavailable: a requirement is missing on this node; the text names it, and the remedy.
        """

    def ask(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Return the argument of `sample()`, on the tick. A blocking backend reads its data on jobs here."""
        return jobs

    def use_jobs(self, jobs: JobSource) -> None:  # noqa: B027 - most need no more than the jobs that they are given
        """Learn where the jobs come from, before the first `open()`."""

    @abstractmethod
    def sample(self, jobs: Sequence[Any]) -> Iterable[Sample]:
        """Return one row for each job with values, or rows of job 0 for the node.

        Args:
            jobs: the result of `ask()`; by default the jobs on the node.

        Raises:
            ParseError: a file or an answer has another form.
            CommandFailed: a program failed this time.
            BackendUnavailable: a requirement has disappeared; the backend is closed, and opened again later.
        """

    def drain(self) -> Iterable[int]:
        """Read the events since the last call; return the ids of jobs that may be about to end."""
        return ()

    def notice(self, job: Job) -> None:  # noqa: B027 - a backend may have nothing to do then
        """Measure a job with tasks changed between ticks: some may be gone by the next tick."""

    def last(self, job: Job) -> Sample | None:
        """Return the last row of a job with a removed cgroup, None if it never had one; forget the job."""
        return None

    def job_value(self, name: str) -> JobValue:
        """Return the function that reads one of `provides`; it can be called until the job's `last()` of all backends.

        Raises:
            KeyError: not one of them.
        """
        raise KeyError(name)

    def use_value(self, name: str, value: JobValue) -> None:
        """Read one of `needs` with a function from now on; without this call, the value is missing.

        A blocking backend reads it only in `ask()`.
        """
        raise KeyError(name)

    def counter_names(self) -> Sequence[CounterName]:
        """Return the contents of its numbered columns on this node, as of its last `open()` or `sample()`."""
        return ()

    def mapping_file(self) -> tuple[str, Sequence[str]] | None:
        """Return the mapping file of Colmet 0.6: the beginning of its name, and its lines; None if it had none."""
        return None

    def changes(self) -> Mapping[str, Callable[[Any], Callable[[], Iterable[Sample]]]]:
        """Return the options that can change at run time, by their names in argparse; none in a blocking backend.

        Each function prepares a new value, or raises ConfigError, and returns a function that applies the value and
        returns the rows that end the measurement until then.
        """
        return {}

    def programs(self) -> Iterable[Command]:
        """Return the programs run by a blocking backend, counted in `agent_default`."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Return its counters since the agent's start, other than rows, by name.

        Counters not declared in `agent_counters` are dropped, with a warning.
        """
        return {}

    def close(self) -> None:  # noqa: B027 - a backend may keep nothing open
        """Release everything; also after a failed open; can be called twice."""

    @classmethod
    def switches(cls) -> tuple[str, str]:
        """Return the options that turn it on and off, ``--enable-...`` and ``--disable-...``; "" for a missing one."""
        scratch = Parser()
        cls.add_options(scratch)
        on, off = [next((n for n in scratch.names if n.startswith(start)), "") for start in ("--enable-", "--disable-")]
        return on, off


def check_declarations(cls: type[InputBackend], others: Sequence[type[InputBackend]]) -> None:
    """Check the declarations of a plug-in's class.

    Raises:
        ValueError: a table is Colmet's or another plug-in's, or `agent_default` has no column for a counter.
        KeyError: unknown capability.
    """
    tables = (cls.schema, *cls.others)
    taken = {schema.name: other.name for other in others for schema in (other.schema, *other.others)}
    for schema in tables:
        if is_declared(schema.name) or schema.name in taken:
            owner = taken.get(schema.name, "Colmet")
            raise ValueError(f"its table {schema.name} has the name of a table of {owner}")
    if len({schema.name for schema in tables}) < len(tables):
        raise ValueError("two of its tables have one name")
    unknown = sorted({field.name for field in cls.agent_counters} - BACKEND_COUNTERS)
    if unknown:
        raise ValueError(f"agent_default has no column for its counters {', '.join(unknown)}: give them a table")
    bits(cls.capabilities | cls.better_with)
