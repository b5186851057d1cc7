"""Declare and check the parameters of the routes."""

import re
from typing import Any, NamedTuple, Optional

from fastapi import Depends, Path, Query, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from colmet.common.live.summary import DEVICE_KEYS, JOB_KEYS, NODE_KEYS
from colmet.web import node_history
from colmet.web.interface import FOLDS, SOURCES

MAX_JOB = (1 << 63) - 1
MAX_ROWS = 1_000_000_000
MAX_TIME = 1e11
MAX_TEXT = 255
MAX_METRIC = 300
PAGE = 1000  # max rows of an answer
MOST_FOOTPRINTS = 200  # max rows of an answer with short curves
STATES = ("running", "ended", "all")
JOB_SORTS = (*JOB_KEYS, "on", "time", "first", "last")
NODE_SORTS = (*NODE_KEYS, *DEVICE_KEYS)
MEASURES = tuple(node_history.MEASURES)
SPANS = tuple(node_history.SPANS)
CHOICES = {"state": STATES, "fold": FOLDS, "source": SOURCES, "measure": MEASURES, "span": SPANS}

JOB = Path(..., ge=1, le=MAX_JOB, description="number of the job")
NODE = Path(..., min_length=1, max_length=MAX_TEXT, description="name of the node")
FILE = Path(..., max_length=MAX_TEXT)
JOBS = Query("", max_length=4000, description="only jobs with these numbers, separated by commas")
STATE = Query("running", description="running, ended or all")
USER = Query("", max_length=MAX_TEXT, description="only jobs of this user; ordinary users get only their own jobs")
ON_NODE = Query("", max_length=MAX_TEXT, description="only this node")
TEXT = Query("", max_length=MAX_TEXT, description="start of the job's number, or part of the user's or a node's name")
NAME_TEXT = Query("", max_length=MAX_TEXT, description="part of the name")
SINCE = Query(None, ge=0, le=MAX_TIME, description="seconds since 1970")
UNTIL = Query(None, ge=0, le=MAX_TIME, description="seconds since 1970")
JOB_SORT = Query("cpu", max_length=MAX_TEXT, description="key of the rows")
MEASURE = Query("cpu", max_length=MAX_TEXT, description="measure of the nodes")
SPAN = Query("hour", max_length=MAX_TEXT, description="the last hour by minute, or the last day by quarter of an hour")
NODE_SORT = Query("node", max_length=MAX_TEXT, description="key of the rows")
REVERSE = Query(False, description="reverse the order")
OFFSET = Query(0, ge=0, le=MAX_ROWS, description="position of the first row")
LIMIT = Query(100, ge=1, le=PAGE, description="maximum number of rows")
METRIC = Query(..., min_length=3, max_length=MAX_METRIC, description="TABLE.COLUMN, such as cgroup_default.cpu_usage")
TABLE = Query(..., min_length=1, max_length=MAX_TEXT, description="name of the table, such as cgroup_default")
COLUMNS = Query("", max_length=4000, description="names, separated by commas; time alone: none; default: all")
AFTER = Query("", max_length=MAX_TEXT + 40, description="`next` of the page before; default: the first page")
ROWS = Query(10_000, ge=0, le=50_000, description="maximum number of rows; 0: only their number and times")
USERS = Query(
    "", max_length=MAX_TEXT, description="only jobs of these users, separated by commas; ordinary users get their own"
)
PROJECTS = Query("", max_length=MAX_TEXT, description="only jobs of these projects, separated by commas")
QUEUES = Query("", max_length=MAX_TEXT, description="only jobs of these queues, separated by commas")
ARCHIVED_STATES = Query("", max_length=MAX_TEXT, description="only jobs in these states, separated by commas")
HOSTS = Query("", max_length=MAX_TEXT, description="only jobs that ran on one of these hosts, separated by commas")
ARRAY = Query("", max_length=MAX_TEXT, description="only jobs of this array")
TASK = Query("", max_length=MAX_TEXT, description="only this task of an array, as its batch system prints it: 17_3")
JOB_NAME = Query("", max_length=MAX_TEXT, description="part of the job's name, in any case")
EFFICIENCY = Query(None, ge=0, le=1, description="only jobs that used less than this share of their allocated CPU time")
RULE = Query("", max_length=MAX_TEXT, description="only jobs with this rule of advice")
ARCHIVED_COLUMNS = Query("", max_length=4000, description="names of values, separated by commas; default: usual ones")
ARCHIVED_SORT = Query("start", max_length=MAX_TEXT, description="value to sort by; missing ones are last")
REPORTED = Query(1000, ge=1, le=10_000, description="maximum number of jobs, the latest")
ASCENDING = Query(False, description="return the smallest first")
JOB_START = Query(None, ge=0, le=MAX_JOB, description="start of one of several jobs with this number")
GROUPED_BY = Query("user", max_length=MAX_TEXT, description="one to three words, separated by commas")
FOOTPRINTS = Query(
    False, alias="footprint", description=f"add the short curves of each job, of {MOST_FOOTPRINTS} at most"
)
ZONE_NAME = r"([A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*)?"
ZONE = Query(
    "", max_length=60, description="time zone of the times, such as Europe/Paris; default, and if it is unknown: UTC"
)
_POINTS = Query(300, ge=2, le=5000, description="maximum number of values of each series")
_FOLD = Query("mean", description="aggregation of the values of an interval")
_RATE = Query(False, description="return the growth per second of a counter, not its value")
_TOGETHER = Query(
    False, description="return the sum, mean, min and max of all nodes and devices at each time, not a series for each"
)
_SOURCE = Query("auto", description="source of the values: memory, the store, or both (auto)")


class SeriesOptions(NamedTuple):
    """The parameters of every series, as in `SeriesQuery`."""

    since: Optional[float]
    until: Optional[float]
    points: int
    fold: str
    rate: bool
    source: str
    together: bool


async def series_options(
    since: Optional[float] = SINCE,
    until: Optional[float] = UNTIL,
    points: int = _POINTS,
    fold: str = _FOLD,
    rate: bool = _RATE,
    source: str = _SOURCE,
    together: bool = _TOGETHER,
) -> SeriesOptions:
    """Return the checked parameters of a series."""
    choose("fold", fold, FOLDS)
    choose("source", source, SOURCES)
    return SeriesOptions(since, until, points, fold, rate, source, together)


SERIES = Depends(series_options)


def split_metric(text: str) -> tuple[str, str]:
    """Return table and column of a metric; HTTPException 400 for any other text."""
    table, dot, column = text.partition(".")
    if not (table and dot and column):
        raise HTTPException(400, "metric is not TABLE.COLUMN, such as cgroup_default.cpu_usage")
    return table, column


def choose(name: str, value: str, values: tuple[str, ...]) -> None:
    """Refuse a value that is none of these, with status 400."""
    if value not in values:
        raise HTTPException(400, f"{name} is {value!r:.80}; there are: {', '.join(values)}")


def numbers_of(text: str) -> list[int]:
    """Return the numbers of jobs; HTTPException 400 for any other text."""
    found = text.split(",") if text else []
    if not all(one.isascii() and one.isdigit() and 1 <= int(one) <= MAX_JOB for one in found):
        raise HTTPException(400, "job is not numbers of jobs, separated by commas")
    return [int(one) for one in found]


def zone_of(text: str) -> str:
    """Return the name of a time zone; HTTPException 400 for any other text. UTC is the empty one."""
    if not re.fullmatch(ZONE_NAME, text):
        raise HTTPException(400, "zone is not the name of a time zone, such as Europe/Paris")
    return "" if text == "UTC" else text


async def only_known_names(request: Request) -> None:
    """Refuse unknown (misspelt) and repeated parameters, with status 400."""
    route: Any = request.scope.get("route")
    known = []
    if isinstance(route, APIRoute):
        dependants = (route.dependant, *route.dependant.dependencies)
        known = [field.alias for dependant in dependants for field in dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            there = f"there are: {', '.join(known)}" if known else "there are none"
            raise HTTPException(400, f"there is no parameter {name!r:.80}; {there}")
        if given.count(name) > 1:
            raise HTTPException(400, f"{name} is given twice")
