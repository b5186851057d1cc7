"""Queries and their results, between the routes and `colmet.web.queries`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError
from colmet.stored.series import ReadingTooSlow

FOLDS = ("mean", "min", "max", "last")
SOURCES = ("auto", "memory", "stored")
FACILITY = "facility_"  # prefix of tables of colmet-facility: without a node, some with user names


class StoreWarning(str):
    """A store's own message. It may name files and hosts, so only administrators see it."""

    __slots__ = ()


def warning_of(err: ColmetError) -> str:
    """Return the warning of a store that could not be read: its own message, or for everybody that it is too slow."""
    return str(err) if isinstance(err, ReadingTooSlow) else StoreWarning(err)


class RowPage(NamedTuple):
    """A page of rows."""

    total: int  # number of all rows
    offset: int  # position of the first row of the page
    items: Sequence[Mapping[str, Any]]  # the rows


class JobsQuery(NamedTuple):
    """A query for jobs."""

    user: str | None = None  # only jobs of this user; None for all
    jobs: frozenset[int] = frozenset()  # only these; empty for all
    state: str = "running"  # running, ended or all
    node: str = ""  # only jobs on this node; "" for all
    text: str = ""  # prefix of the number, or part of the name of the user or of a node; "" for all
    since: float | None = None  # only jobs seen at this time or later, seconds since 1970; None for all
    until: float | None = None  # only jobs seen at this time or earlier; None for all
    sort: str = "cpu"  # a key of the rows
    reverse: bool = False  # whether to reverse the order
    offset: int = 0  # position of the first row
    limit: int = 100  # max rows


class NodesQuery(NamedTuple):
    """A query for nodes."""

    names: frozenset[str] | None = None  # only these; None for all
    text: str = ""  # part of the name; "" for all
    sort: str = "node"  # a key of the rows
    reverse: bool = False  # whether to reverse the order
    offset: int = 0  # position of the first row
    limit: int = 100  # max rows


class HistoryQuery(NamedTuple):
    """A query for the values of all nodes over time."""

    measure: str  # a key of `colmet.web.node_history.MEASURES`
    span: str  # hour or day
    text: str = ""  # part of the name; "" for all
    offset: int = 0  # position of the first node
    limit: int = 100  # max nodes


class SeriesQuery(NamedTuple):
    """A query for values over time."""

    job: int  # number of the job; 0 for a node's own values
    table: str  # such as cgroup_default
    column: str  # such as cpu_usage
    node: str = ""  # only this node; "" for all nodes of the job
    since: float | None = None  # seconds since 1970; None for the first value
    until: float | None = None  # seconds since 1970; None for now
    points: int = 300  # max values of each series
    fold: str = "mean"  # aggregation of the values of an interval: one of `FOLDS`
    rate: bool = False  # whether to return a counter's growth per second
    source: str = "auto"  # one of `SOURCES`
    together: bool = False  # whether to return the sum, mean, min and max of all series, not each of them
    own: Mapping[str, float | None] | None = None  # only these hosts, as `Queries.own`; None for all


def earliest(own: Mapping[str, float | None]) -> float | None:
    """Return the start of a user's rows over all hosts; None for all rows."""
    begins = [at for at in own.values() if at is not None]
    return min(begins) if begins and len(begins) == len(own) else None
