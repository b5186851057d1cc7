"""The interface of every input backend."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from colmet.common.runtime.capabilities import bits
from colmet.common.runtime.cli import Options
from colmet.common.schema import Field, Sample, Schema
from colmet.common.tables import is_declared
from colmet.common.tables.agent import BACKEND_COUNTERS
from colmet.node.jobs.job import Job
from colmet.node.selfmetrics.mapping import CounterName
from colmet.node.system.command import Command
from colmet.node.system.host import Host

JobValue = Callable[[Job], Any]  # the last value of a job, as of this tick; None: missing


class InputBackend(ABC):
    """Measures one table, or several that belong together.

    Life: built from the command line; `open()`, again with back-off for as long as it raises BackendUnavailable;
    `sample()` at every tick; `close()`. Between ticks, for those that have something to do then: `drain()`,
    `notice()`, `last()`.

    A blocking backend runs in a thread of its own (`background.BackgroundBackend`): `open()`, `sample()` and `close()`
    may block there, and a tick that comes while `sample()` has not returned is skipped. It keeps no file of its host
    open (`Host.keep`), and reads from jobs only in `ask()`.

    Attributes:
        schema: of the first table.
        others: of further tables; a sample of one names it.
        agent_counters: columns of `agent_default` that `counters()` gives values for. It holds no other columns than
            those in `colmet.common.tables.agent`.
        notes: what a reader of the first table needs to know beside its columns, for docs/metrics.md.
        blocking: whether it may wait for a program, a device or a driver.
        capabilities: rights of root's that it needs, by their names in capabilities(7).
        of_interval: whether its rows tell of the time since its sample before, so that the first one tells little.
        deadline_s: of a blocking backend: how long `sample()` may take before that is told as a failure.
        part: what it measures, where that is less than it could.
        provides: names of values of jobs that it hands over to other backends, see `job_value`.
        needs: names of values of jobs that it reads from other backends, see `use_value`; it is called after them.
        fd: readable when `drain()` has something to take in; -1 where there is none, or while it is closed.
    """

    name: ClassVar[str]
    schema: Schema
    others: tuple[Schema, ...] = ()
    agent_counters: tuple[Field, ...] = ()
    notes: ClassVar[str] = ""
    blocking: ClassVar[bool] = False
    of_interval: ClassVar[bool] = False
    capabilities: frozenset[str] = frozenset()
    deadline_s: float = 30.0
    part: str = ""
    provides: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
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

    def ask(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """On the tick: what `sample()` is to be given. A blocking backend reads what it has to know of jobs here."""
        return jobs

    @abstractmethod
    def sample(self, jobs: Sequence[Any]) -> Iterable[Sample]:
        """One row for each job that has something to tell, or rows of job 0 for the node.

        Args:
            jobs: what `ask()` said; the jobs on the node, where the backend does not say otherwise.

        Raises:
            ParseError: a file or an answer has another form.
            CommandFailed: a program failed this time.
            BackendUnavailable: what it needs has gone; it is closed, and opened again later.
        """

    def drain(self) -> Iterable[int]:
        """Take in what has come since; the ids of jobs that may be about to end."""
        return ()

    def notice(self, job: Job) -> None:  # noqa: B027 - a backend may have nothing to do then
        """A job's tasks have changed between ticks: look at what may be gone by the next one."""

    def last(self, job: Job) -> Sample | None:
        """A job's cgroup has gone: its last row, or None where it never had one. Nothing of it is kept."""
        return None

    def job_value(self, name: str) -> JobValue:
        """Return the function that reads one of `provides`; it can be called until the job's `last()` of all backends.

        Raises:
            KeyError: not one of them.
        """
        raise KeyError(name)

    def use_value(self, name: str, value: JobValue) -> None:
        """Read one of `needs` with a function from now on; without this call, the value is missing.

        A blocking backend reads it in `ask()` alone.
        """
        raise KeyError(name)

    def counter_names(self) -> Sequence[CounterName]:
        """What its numbered columns hold on this node, as of its last `open()` or `sample()`."""
        return ()

    def mapping_file(self) -> tuple[str, Sequence[str]] | None:
        """The same as Colmet 0.6 wrote it: how the file's name begins, and its lines; None where it wrote none."""
        return None

    def changes(self) -> Mapping[str, Callable[[Any], Callable[[], Iterable[Sample]]]]:
        """Its options that can change while it runs, by what argparse calls their values; of no blocking backend.

        What is given there gets ready for a new value, or raises ConfigError, and returns what puts it into effect:
        that has the rows that end what was measured until then.
        """
        return {}

    def programs(self) -> Iterable[Command]:
        """Those that a blocking backend asks, or has asked: they are counted in `agent_default`."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Return what it counts beside its rows since the agent's start, by name.

        A counter that `agent_counters` does not declare is dropped, with a warning.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give everything back; also after a failed open, also twice."""

    @classmethod
    def switches(cls) -> tuple[str, str]:
        """The options that turn it on and off, ``--enable-...`` and ``--disable-...``; "" where there is none."""
        scratch = argparse.ArgumentParser(add_help=False)
        cls.add_options(scratch)
        names = [name for action in scratch._actions for name in action.option_strings]
        on, off = [next((n for n in names if n.startswith(start)), "") for start in ("--enable-", "--disable-")]
        return on, off


def check_declarations(cls: type[InputBackend], others: Sequence[type[InputBackend]]) -> None:
    """Check what the class of a plug-in declares.

    Raises:
        ValueError: a table is Colmet's or another plug-in's, or `agent_default` has no column for a counter.
        KeyError: there is no such capability.
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
    bits(cls.capabilities)
