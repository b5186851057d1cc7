"""The interface between the routes and the queries that answer them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.batch.qmem import Hosts, Owners

FOLDS = ("mean", "min", "max", "last")
SOURCES = ("auto", "memory", "stored")
FACILITY = "facility_"  # prefix of tables of colmet-facility: of no node, and some name users


class StoreWarning(str):
    """A store's own message, which may name files and hosts: for administrators alone."""

    __slots__ = ()


class RowPage(NamedTuple):
    """Some of many rows.

    Attributes:
        total: of all rows.
        offset: of the first row here.
        items: the rows.
    """

    total: int
    offset: int
    items: Sequence[Mapping[str, Any]]


class JobsQuery(NamedTuple):
    """A query for jobs.

    Attributes:
        user: only those of this user; None for all.
        state: running, ended or all.
        node: only those that are on this node; "" for all.
        text: begins the number, or is in the user's name or a node's; "" for all.
        since: only those that were seen from then on, seconds since 1970; None for all.
        until: only those that were seen up to then.
        sort: a key of the rows.
        reverse: the other way round.
        offset: of the first one.
        limit: how many at most.
    """

    user: str | None = None
    state: str = "running"
    node: str = ""
    text: str = ""
    since: float | None = None
    until: float | None = None
    sort: str = "cpu"
    reverse: bool = False
    offset: int = 0
    limit: int = 100


class NodesQuery(NamedTuple):
    """A query for nodes.

    Attributes:
        names: only these; None for all.
        text: is in the name; "" for all.
        sort: a key of the rows.
        reverse: the other way round.
        offset: of the first one.
        limit: how many at most.
    """

    names: frozenset[str] | None = None
    text: str = ""
    sort: str = "node"
    reverse: bool = False
    offset: int = 0
    limit: int = 100


class SeriesQuery(NamedTuple):
    """A query for values over time.

    Attributes:
        job: whose; 0 for a node's own.
        table: such as cgroup_default.
        column: such as cpu_usage.
        node: only this one; "" for all (of a job).
        since: seconds since 1970; None for as far back as there is.
        until: seconds since 1970; None for now.
        points: the most for each node.
        fold: how the values of an interval become one: one of `FOLDS`.
        rate: a counter's growth in a second, not the counter.
        source: one of `SOURCES`.
        own: only these hosts, each from a time on, as `Interface.own`; None for all.
    """

    job: int
    table: str
    column: str
    node: str = ""
    since: float | None = None
    until: float | None = None
    points: int = 300
    fold: str = "mean"
    rate: bool = False
    source: str = "auto"
    own: Mapping[str, float | None] | None = None


class Interface(ABC):
    """Answers queries.

    Methods are called by several threads at once, may wait for a disk or a database where it says so, and raise
    `colmet.common.errors.ColmetError` where the store cannot be read.
    """

    @abstractmethod
    def cluster(self, user: str | None) -> Mapping[str, Any]:
        """Return totals of nodes and of the jobs of a user, or of all."""

    @abstractmethod
    def jobs(self, asked: JobsQuery) -> RowPage:
        """Return rows of jobs, from memory."""

    @abstractmethod
    def own(self, job: int, user: str) -> Mapping[str, float | None]:
        """Return the hosts whose rows of a job are a user's, and from when on, None for all. May wait for a store."""

    def seek(self, job: int) -> None:
        """Wait for a store, and fail, as `own` does for a job that only the store can know."""
        del job

    @abstractmethod
    def job(self, job: int, own: Mapping[str, float | None] | None = None) -> Mapping[str, Any] | None:
        """Return a job with a row for each of its nodes, and its tables; None for none. May wait for a store.

        Args:
            job: its number.
            own: only these hosts, as `own`; None for all.
        """

    @abstractmethod
    def nodes(self, asked: NodesQuery) -> RowPage:
        """Return rows of nodes, from memory."""

    @abstractmethod
    def nodes_of(self, user: str) -> frozenset[str]:
        """Return the nodes of a user's running jobs."""

    @abstractmethod
    def there_since(self, node: str, user: str) -> float:
        """Return when the first of a user's jobs that are on a node now began there, seconds since 1970."""

    @abstractmethod
    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a node with a row for each job on it, and its tables; None for none."""

    @abstractmethod
    def series(self, asked: SeriesQuery) -> Mapping[str, Any] | None:
        """Return values over time; None without such a job, node, table or column. May wait for a store."""

    @abstractmethod
    def completeness(
        self, job: int, since: float | None, until: float | None, own: Mapping[str, float | None] | None = None
    ) -> Mapping[str, Any] | None:
        """Return the share of a job's samples that is stored, and its gaps; None for none. May wait for a store."""

    @abstractmethod
    def qhost(self) -> Hosts:
        """Return hosts with their jobs, from Grid Engine, else from the nodes' data."""

    @abstractmethod
    def qstat(self) -> Owners:
        """Return owners with what their jobs requested and used, from Grid Engine, else from the nodes' data."""


def earliest(own: Mapping[str, float | None]) -> float | None:
    """Return from when on any row is a user's; None for all rows."""
    begins = [at for at in own.values() if at is not None]
    return min(begins) if begins and len(begins) == len(own) else None
