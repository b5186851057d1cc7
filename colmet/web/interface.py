"""Queries and their results, between the routes and `colmet.web.queries`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FOLDS = ("mean", "min", "max", "last")
SOURCES = ("auto", "memory", "stored")
FACILITY = "facility_"  # prefix of tables of colmet-facility: without a node, some with user names


class StoreWarning(str):
    """A store's own message. It may name files and hosts, so only administrators see it."""

    __slots__ = ()


class RowPage(NamedTuple):
    """A page of rows.

    Attributes:
        total: number of all rows.
        offset: position of the first row of the page.
        items: the rows.
    """

    total: int
    offset: int
    items: Sequence[Mapping[str, Any]]


class JobsQuery(NamedTuple):
    """A query for jobs.

    Attributes:
        user: only jobs of this user; None for all.
        state: running, ended or all.
        node: only jobs on this node; "" for all.
        text: prefix of the number, or part of the name of the user or of a node; "" for all.
        since: only jobs seen at this time or later, seconds since 1970; None for all.
        until: only jobs seen at this time or earlier; None for all.
        sort: a key of the rows.
        reverse: whether to reverse the order.
        offset: position of the first row.
        limit: max rows.
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
        text: part of the name; "" for all.
        sort: a key of the rows.
        reverse: whether to reverse the order.
        offset: position of the first row.
        limit: max rows.
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
        job: number of the job; 0 for a node's own values.
        table: such as cgroup_default.
        column: such as cpu_usage.
        node: only this node; "" for all nodes of the job.
        since: seconds since 1970; None for the first value.
        until: seconds since 1970; None for now.
        points: max values of each series.
        fold: aggregation of the values of an interval: one of `FOLDS`.
        rate: whether to return a counter's growth per second.
        source: one of `SOURCES`.
        own: only these hosts, each from a time on, as `Queries.own`; None for all.
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


def earliest(own: Mapping[str, float | None]) -> float | None:
    """Return the start of a user's rows over all hosts; None for all rows."""
    begins = [at for at in own.values() if at is not None]
    return min(begins) if begins and len(begins) == len(own) else None
