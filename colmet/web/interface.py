"""Declare and check the parameters of the JSON interface, add its routes, and describe it by OpenAPI."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from colmet.common.live.summary import DEVICE_KEYS, JOB_KEYS, NODE_KEYS
from colmet.jobs.archive.queries import GROUPS, SORTS, SPANS
from colmet.jobs.columns import STATES
from colmet.web import models, node_history, stored_models
from colmet.web.series import FOLDS
from colmet.web.series_query import SOURCES
from colmet.web.stored_models import VALUES

MAX_JOB = (1 << 63) - 1
MAX_ROWS = 1_000_000_000
MAX_TIME = 1e11
MAX_TEXT = 255
MAX_METRIC = 300
MAX_LIMIT = 1000  # max rows of an answer
MOST_FOOTPRINTS = 200  # max rows of an answer with short curves
JOB_STATES = ("running", "ended", "all")
JOB_SORTS = (*JOB_KEYS, "on", "time", "first", "last")
NODE_SORTS = (*NODE_KEYS, *DEVICE_KEYS)
HISTORY_MEASURES = tuple(node_history.MEASURES)
HISTORY_SPANS = tuple(node_history.SPANS)

JOB = Path(..., ge=1, le=MAX_JOB, description="number of the job")
NODE = Path(..., min_length=1, max_length=MAX_TEXT, description="name of the node")


def some_text(description: str, default: str = "", max_length: int = MAX_TEXT) -> Any:
    """Return a parameter of a query."""
    return Query(default, max_length=max_length, description=description)


JOBS = some_text("only jobs with these numbers, separated by commas", max_length=4000)
STATE = Query("running", description="running, ended or all")
USER = some_text("only jobs of this user; ordinary users get only their own jobs")
ON_NODE = some_text("only this node")
TEXT = some_text("start of the job's number, or part of the user's or a node's name")
NAME_TEXT = some_text("part of the name")
SINCE = Query(None, ge=0, le=MAX_TIME, description="seconds since 1970")
UNTIL = Query(None, ge=0, le=MAX_TIME, description="seconds since 1970")
JOB_SORT = some_text("key of the rows", "cpu")
MEASURE = some_text("measure of the nodes", "cpu")
SPAN = some_text("the last hour by minute, or the last day by quarter of an hour", "hour")
NODE_SORT = some_text("key of the rows", "node")
REVERSE = Query(False, description="reverse the order")
OFFSET = Query(0, ge=0, le=MAX_ROWS, description="position of the first row")
LIMIT = Query(100, ge=1, le=MAX_LIMIT, description="maximum number of rows")
METRIC = Query(..., min_length=3, max_length=MAX_METRIC, description="TABLE.COLUMN, such as cgroup_default.cpu_usage")
TABLE = Query(..., min_length=1, max_length=MAX_TEXT, description="name of the table, such as cgroup_default")
COLUMNS = some_text("names, separated by commas; time alone: none; default: all", max_length=4000)
AFTER = some_text("`next` of the page before; default: the first page", max_length=MAX_TEXT + 40)
ROWS = Query(10_000, ge=0, le=50_000, description="maximum number of rows; 0: only their number and times")
ARCHIVED_COLUMNS = some_text("names of values, separated by commas; default: usual ones", max_length=4000)
ARCHIVED_SORT = some_text("value to sort by; missing ones are last", "start")
REPORTED = Query(1000, ge=1, le=10_000, description="maximum number of jobs, the latest")
ASCENDING = Query(False, description="return the smallest first")
JOB_START = Query(None, ge=0, le=MAX_JOB, description="start of one of several jobs with this number")
GROUPED_BY = some_text("one to three words, separated by commas", "user")
FOOTPRINTS = Query(
    False, alias="footprint", description=f"add the short curves of each job, of {MOST_FOOTPRINTS} at most"
)
ZONE_NAME = r"([A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*)?"
ZONE = Query(
    "", max_length=60, description="time zone of the times, such as Europe/Paris; default, and if it is unknown: UTC"
)


def options_in(kind: type) -> Any:
    """Return a dependency: an object of a class whose fields are parameters.

    The class itself would be one, too, but FastAPI calls whatever is not a coroutine in a thread.
    """

    async def make(**given: Any) -> Any:
        return kind(**given)

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return Depends(make)


class SeriesOptions(NamedTuple):
    """The parameters of every series, as in `SeriesQuery`."""

    since: Optional[float] = SINCE
    until: Optional[float] = UNTIL
    points: int = Query(300, ge=2, le=5000, description="maximum number of values of each series")
    fold: str = Query("mean", description="aggregation of the values of an interval")
    rate: bool = Query(False, description="return the growth per second of a counter, not its value")
    source: str = Query("auto", description="source of the values: memory, the store, or both (auto)")
    together: bool = Query(
        False,
        description="return the sum, mean, min and max of all nodes and devices at each time, not a series for each",
    )

    def check(self) -> None:
        """Refuse unknown values, with status 400."""
        choose("fold", self.fold, FOLDS)
        choose("source", self.source, SOURCES)


SERIES = options_in(SeriesOptions)


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


MODELS = (models, stored_models)
DESCRIPTION = """What jobs and nodes use, as colmet-collector receives it from the nodes and stores it.

Times are seconds since 1970, sizes bytes, shares 0 to 1; a missing value is null. Ordinary users see their own jobs and
the nodes of these jobs; administrators see all."""


def _error(text: str, header: str = "", kind: str = "string") -> dict[str, Any]:
    headers = {"headers": {header: {"schema": {"type": kind}}}} if header else {}
    return {"model": models.Error, "description": text, **headers}


ERRORS: dict[Any, dict[str, Any]] = {
    400: _error("A value cannot be used."),
    401: _error("The login is missing or wrong.", "WWW-Authenticate"),
    403: _error("The question is for jobs that the user may not see."),
    405: _error("Only GET and HEAD are answered.", "Allow"),
    429: _error("Too many requests at once.", "Retry-After", "integer"),
}
NOT_FOUND: dict[Any, dict[str, Any]] = {404: _error("Not found, or access denied.")}
REPORTS: dict[Any, dict[str, Any]] = {
    501: _error("The server lacks a Python module; the text has the remedy."),
    503: _error("The store cannot be read, or not within the permitted time and memory."),
}
ARCHIVE: dict[Any, dict[str, Any]] = {503: _error("The archive cannot be read.")}
PAGE: dict[Any, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}
PICTURE: dict[Any, dict[str, Any]] = {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}
}
# path, handler, model of the answer, whether it may be 404
Route = tuple[str, Any, Any, bool]
_ARCHIVED = ("/api/v1/archive/jobs", "/api/v1/usage", "/api/v1/report", "/api/v1/report.html")
_NUMBERS = "^([1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*)?$"
_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "metric": {"pattern": r"^[^.]+\..+$"},
    "zone": {"pattern": f"^{ZONE_NAME}$"},
    "after": {"pattern": r"^$|^[0-9]{1,15}\.[0-9]{1,15}\.[^\n]+$"},
    **{"state": {"enum": list(JOB_STATES)}, "fold": {"enum": list(FOLDS)}, "source": {"enum": list(SOURCES)}},
    **{"measure": {"enum": list(HISTORY_MEASURES)}, "span": {"enum": list(HISTORY_SPANS)}},
}
_EXAMPLES = {True: "cgroup_default.cpu_usage", False: "procstats_default.loadavg_1min"}


def add_routes(app: FastAPI, rows: Sequence[Route], more: Optional[dict[Any, Any]] = None, method: str = "GET") -> None:
    """Add routes to an application; `more` are answers besides those of all routes."""
    for path, endpoint, model, may_lack in rows:
        app.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_model=model,
            responses={**ERRORS, **(NOT_FOUND if may_lack else {}), **(more or {})},
            dependencies=[Depends(only_known_names)],
            operation_id=endpoint.__name__,
        )


def described(app: FastAPI, is_open: bool) -> dict[str, Any]:
    """Return FastAPI's description with corrections; with `is_open`, requests need no login."""
    description = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = description["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if description["openapi"].startswith("3.0"):  # from pydantic 1, without null
        for name, schema in schemas.items():
            _add_nulls(next(getattr(one, name) for one in MODELS if hasattr(one, name)), schema)
    for path, methods in description["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            content = operation["responses"]["200"]["content"]
            if "text/html" in content or "image/png" in content:
                content.pop("application/json", None)
            for parameter in operation.get("parameters", []):
                name, schema = parameter["name"], parameter["schema"]
                if path in _ARCHIVED:
                    _describe_archived(name, schema)
                    continue
                schema.update(_SCHEMAS.get(name, {}))
                if name == "sort":
                    schema["enum"] = list(JOB_SORTS if path.endswith("/jobs") else NODE_SORTS)
                elif name == "job":
                    schema.update({"pattern": _NUMBERS} if parameter["in"] == "query" else {"format": "int64"})
                elif name in ("metric", "table"):
                    parameter["example"] = "cgroup_default" if name == "table" else _EXAMPLES["/jobs/" in path]
    if not is_open:
        description["components"]["securitySchemes"] = {
            "basic": {"type": "http", "scheme": "basic"},
            "token": {"type": "http", "scheme": "bearer"},
        }
        description["security"] = [{"basic": []}, {"token": []}]
    return description


def _describe_archived(name: str, schema: dict[str, Any]) -> None:
    """Add the accepted texts of a parameter of the archive's lists."""
    if name == "sort":
        schema["enum"] = list(SORTS)
    elif name == "job":
        schema["pattern"] = _NUMBERS
    elif name in ("state", "columns"):
        one = f"({'|'.join(STATES if name == 'state' else VALUES)})"
        schema["pattern"] = f"^({one}(,{one})*)?$"
    elif name == "by":
        word, span = [f"({'|'.join(some)})" for some in ([one for one in GROUPS if one not in SPANS], SPANS)]
        schema["pattern"] = f"^({word}(,{word}){{0,2}}|({word},){{0,2}}{span})$"


def _add_nulls(model: Any, schema: dict[str, Any]) -> None:
    """Mark the nullable values of a model, as in OpenAPI 3.0."""
    for name, field in model.__fields__.items():
        inner = schema["properties"][name]
        if field.allow_none:
            inner["nullable"] = True
        for sub in field.sub_fields or []:
            if sub.allow_none and "items" in inner:
                inner["items"]["nullable"] = True
