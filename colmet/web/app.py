"""Declare the routes of the JSON interface, and limit each user to permitted data."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any, Optional

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colmet import __version__
from colmet.batch.qmem import Hosts, Owners, envelope
from colmet.common.errors import ColmetError
from colmet.common.live.summary import JOB_KEYS, NODE_KEYS
from colmet.web import models
from colmet.web.access import Access
from colmet.web.catalogue import measures_answer
from colmet.web.files import FOLDER, INDEX, MAX_AGE_S, file_answer, read_files
from colmet.web.interface import (
    FACILITY,
    FOLDS,
    SOURCES,
    Interface,
    JobsQuery,
    NodesQuery,
    SeriesQuery,
    StoreWarning,
    earliest,
)
from colmet.web.limits import Busy
from colmet.web.middleware import CLIENT, RequestFilter, too_many, visitor_of
from colmet.web.responses import answer, failure, pack, takes_gzip, to_json
from colmet.web.workers import Workers

MAX_JOB = (1 << 63) - 1
MAX_ROWS = 1_000_000_000
MAX_TIME = 1e11
MAX_TEXT = 255
MAX_METRIC = 300
STATES = ("running", "ended", "all")
JOB_SORTS = (*JOB_KEYS, "on", "time", "first", "last")
NODE_SORTS = NODE_KEYS
PAGE = 1000  # max rows of an answer
LATE_S = 60.0  # timeout of a request, answered with 429
DESCRIPTION = """What jobs and nodes use, as colmet-collector receives it from the nodes and stores it.

Times are seconds since 1970, sizes bytes, shares 0 to 1; a missing value is null. An ordinary user sees the user's
own jobs and their nodes; administrators see all."""

# Parameters of several routes.
_JOB = Path(..., ge=1, le=MAX_JOB, description="the number of a job")
_NODE = Path(..., min_length=1, max_length=MAX_TEXT, description="the name of a node")
_FILE = Path(..., max_length=MAX_TEXT)
_STATE = Query("running", description="running, ended or all")
_USER = Query("", max_length=MAX_TEXT, description="only this user's jobs; an ordinary user sees the own ones alone")
_ON_NODE = Query("", max_length=MAX_TEXT, description="only of this node")
_TEXT = Query("", max_length=MAX_TEXT, description="begins the number, or is in the name of the user or of a node")
_NAME_TEXT = Query("", max_length=MAX_TEXT, description="is in the name")
_SINCE = Query(None, ge=0, le=MAX_TIME, description="seconds since 1970")
_UNTIL = Query(None, ge=0, le=MAX_TIME, description="seconds since 1970")
_JOB_SORT = Query("cpu", max_length=MAX_TEXT, description="a key of the rows")
_NODE_SORT = Query("node", max_length=MAX_TEXT, description="a key of the rows")
_REVERSE = Query(False, description="in reverse order")
_OFFSET = Query(0, ge=0, le=MAX_ROWS, description="of the first row")
_LIMIT = Query(100, ge=1, le=PAGE, description="the most rows")
_METRIC = Query(..., min_length=3, max_length=MAX_METRIC, description="TABLE.COLUMN, such as cgroup_default.cpu_usage")
_POINTS = Query(300, ge=2, le=5000, description="the most values of each series")
_FOLD = Query("mean", description="how the values of an interval become one")
_RATE = Query(False, description="a counter's growth in a second, not the counter")
_SOURCE = Query("auto", description="where values are from: memory, the store, or both")
_CHOICES = {  # values of parameters
    "state": STATES,
    "fold": FOLDS,
    "source": SOURCES,
}
_EXAMPLES = {True: "cgroup_default.cpu_usage", False: "procstats_default.loadavg_1min"}

_STORE_FAILS = "the stored data cannot be read, or not all of it; administrators see why"
_NO_JOB = "job {} does not exist, or you may not see it"
_NO_NODE = "node {!r} does not exist, or you may not see it"
_ERRORS: dict[Any, dict[str, Any]] = {
    400: {"model": models.Error, "description": "A value cannot be used."},
    401: {
        "model": models.Error,
        "description": "The login is missing or wrong.",
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
    },
    405: {
        "model": models.Error,
        "description": "Only GET and HEAD are answered.",
        "headers": {"Allow": {"schema": {"type": "string"}}},
    },
    429: {
        "model": models.Error,
        "description": "Too many requests at once.",
        "headers": {"Retry-After": {"schema": {"type": "integer"}}},
    },
}
_NOT_FOUND: dict[Any, dict[str, Any]] = {404: {"model": models.Error, "description": "Not found, or access denied."}}


def build_app(
    interface: Interface,
    access: Access,
    *,
    gridengine: bool = False,
    connections: Callable[[], int] = lambda: 0,
    hosts: Optional[frozenset[str]] = None,
    client: Callable[[Mapping[str, Any]], str] = lambda scope: str((scope.get("client") or ("",))[0]),
    folder: FilePath = FOLDER,
    fresh_files: bool = False,
) -> FastAPI:
    """Return the ASGI application.

    Args:
        interface: answers the queries.
        access: authenticates requests.
        gridengine: whether /qhost and /qstat serve Grid Engine's hosts and jobs.
        connections: returns the number of open connections.
        hosts: names allowed in Host headers; None for any.
        client: returns the client of a request from its scope.
        folder: folder of the page's files.
        fresh_files: whether to read them for every request, for editing the page.
    """
    app = FastAPI(title="Colmet", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    routes = Routes(interface, access, gridengine, connections, folder, fresh_files)
    routes.add_to(app)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Busy, _busy)
    app.add_middleware(RequestFilter, access=access, hosts=hosts, client=client)
    return app


class Routes:
    """The handlers of requests, one method for each path; see `build_app` for the arguments."""

    def __init__(
        self,
        interface: Interface,
        access: Access,
        gridengine: bool,
        connections: Callable[[], int],
        folder: FilePath,
        fresh_files: bool,
    ) -> None:
        self._interface = interface
        self._access = access
        self._gridengine = gridengine
        self._connections = connections
        self._folder = folder
        self._fresh_files = fresh_files
        self._files = read_files(folder)
        self._memory = Workers("memory", 4, 256, 128, LATE_S)
        self._store = Workers("store", 16, 64, 32, LATE_S)
        self._app: Optional[FastAPI] = None
        self._openapi = b""

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        api = "/api/v1"
        rows: list[tuple[str, Any, Any, bool]] = [
            (f"{api}/whoami", self.whoami, models.Whoami, False),
            (f"{api}/cluster", self.cluster, models.Cluster, False),
            (f"{api}/measures", self.measures, models.Measures, False),
            (f"{api}/jobs", self.jobs, models.Jobs, False),
            (f"{api}/jobs/{{job}}", self.job, models.Job, True),
            (f"{api}/jobs/{{job}}/series", self.job_series, models.Series, True),
            (f"{api}/jobs/{{job}}/completeness", self.completeness, models.Completeness, True),
            (f"{api}/nodes", self.nodes, models.Nodes, False),
            (f"{api}/nodes/{{node}}", self.node, models.Node, True),
            (f"{api}/nodes/{{node}}/series", self.node_series, models.Series, True),
            (f"{api}/status", self.status, models.Status, True),
            ("/qhost", self.qhost, models.Qhost, False),
            ("/qstat", self.qstat, models.Qstat, False),
        ]
        for path, endpoint, model, may_lack in rows:
            app.add_api_route(
                path,
                endpoint,
                methods=["GET"],
                response_model=model,
                responses={**_ERRORS, **(_NOT_FOUND if may_lack else {})},
                dependencies=[Depends(_only_known_names)],
                operation_id=endpoint.__name__,
            )
        for path, endpoint in (
            ("/", self.index),
            ("/static/{path:path}", self.static),
            ("/openapi.json", self.openapi),
        ):
            app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
        self._app = app

    # -- everything --

    async def whoami(self, request: Request) -> Response:
        """The user of the request, and the version of the interface."""
        visitor = visitor_of(request.scope)
        return answer(
            {
                "user": visitor.user,
                "admin": visitor.is_admin,
                "version": __version__,
                "time": time.time(),
                "gridengine": self._gridengine,
            }
        )

    async def status(self, request: Request) -> Response:
        """Counters of this process; for administrators."""
        if visitor_of(request.scope).only is not None:
            raise HTTPException(404, "the status is for administrators")
        return answer(
            {
                "version": __version__,
                "time": time.time(),
                "since": self._access.stats.since,
                "counts": self._access.stats.values(),
                "connections": self._connections(),
                "users": self._access.names,
                "waiting": {"memory": self._memory.pending, "store": self._store.pending},
            }
        )

    async def measures(self, request: Request) -> Response:
        """The measures that charts and tables are made of, with their columns, and the units of columns."""
        return answer(measures_answer(), packed=_packed(request))

    async def cluster(self, request: Request) -> Response:
        """Totals of nodes and jobs; for an ordinary user of the own jobs."""
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            totals = self._interface.cluster(only)
            if only is None:
                return totals
            nodes = totals["nodes"]
            return {**totals, "nodes": {key: nodes[key] if key in ("heard", "silent") else None for key in nodes}}

        return await self._respond(self._memory, request, work)

    # -- jobs --

    async def jobs(
        self,
        request: Request,
        state: str = _STATE,
        user: str = _USER,
        node: str = _ON_NODE,
        text: str = _TEXT,
        since: Optional[float] = _SINCE,
        until: Optional[float] = _UNTIL,
        sort: str = _JOB_SORT,
        reverse: bool = _REVERSE,
        offset: int = _OFFSET,
        limit: int = _LIMIT,
    ) -> Response:
        """Rows of jobs that this process has seen."""
        _choose("state", state, STATES)
        _choose("sort", sort, JOB_SORTS)
        only = visitor_of(request.scope).only
        query = JobsQuery(
            only if only is not None else user or None, state, node, text, since, until, sort, reverse, offset, limit
        )

        def work() -> Mapping[str, Any]:
            page = self._interface.jobs(query)
            items = [row for row in page.items if only is None or row["user"] == only]
            return {"total": page.total, "offset": page.offset, "limit": limit, "items": items}

        return await self._respond(self._memory, request, work)

    async def job(self, request: Request, job: int = _JOB) -> Response:
        """One job, with its nodes and its tables."""
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            own = self._own(job, only)
            try:
                found = self._interface.job(job, own)
            except ColmetError as err:
                return {
                    "job": _empty_job(job),
                    "nodes": [],
                    "tables": {},
                    "stored": False,
                    "warnings": [StoreWarning(err)],
                }
            if found is None:
                raise HTTPException(404, _NO_JOB.format(job))
            if only is not None:  # other nodes may name other users
                nodes = [{**row, "user": only} for row in found["nodes"]]
                found = {**found, "job": {**found["job"], "user": only}, "nodes": nodes}
            return {**found, "tables": own_tables(found["tables"], only)}

        return await self._respond(self._store, request, work)

    async def job_series(
        self,
        request: Request,
        job: int = _JOB,
        metric: str = _METRIC,
        node: str = _ON_NODE,
        since: Optional[float] = _SINCE,
        until: Optional[float] = _UNTIL,
        points: int = _POINTS,
        fold: str = _FOLD,
        rate: bool = _RATE,
        source: str = _SOURCE,
    ) -> Response:
        """Values of a job over time."""
        table, column = _metric(metric)
        _choose("fold", fold, FOLDS)
        _choose("source", source, SOURCES)
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            own = self._own(job, only)
            start = _later(since, own)
            query = SeriesQuery(job, table, column, node, start, until, points, fold, rate, source, own)
            if start is not None and until is not None and start > until:
                return _no_series(query, [])
            return self._series(query, only, f"job {job} has no {metric}, or you may not see it")

        return await self._respond(self._store, request, work)

    async def completeness(
        self, request: Request, job: int = _JOB, since: Optional[float] = _SINCE, until: Optional[float] = _UNTIL
    ) -> Response:
        """The share of a job's samples that is stored, and its gaps."""
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            own = self._own(job, only)
            try:
                found = self._interface.completeness(job, _later(since, own), until, own)
            except ColmetError as err:
                nothing = dict.fromkeys(("share", "expected", "present"))
                return {"job": job, **nothing, "hosts": [], "warnings": [StoreWarning(err)]}
            if found is None:
                raise HTTPException(404, _NO_JOB.format(job))
            return found

        return await self._respond(self._store, request, work)

    # -- nodes --

    async def nodes(
        self,
        request: Request,
        text: str = _NAME_TEXT,
        sort: str = _NODE_SORT,
        reverse: bool = _REVERSE,
        offset: int = _OFFSET,
        limit: int = _LIMIT,
    ) -> Response:
        """Rows of nodes; for an ordinary user those of the user's jobs."""
        _choose("sort", sort, NODE_SORTS)
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            names = None if only is None else self._interface.nodes_of(only)
            page = self._interface.nodes(NodesQuery(names, text, sort, reverse, offset, limit))
            items = [row for row in page.items if names is None or row["node"] in names]
            return {"total": page.total, "offset": page.offset, "limit": limit, "items": items}

        return await self._respond(self._memory, request, work)

    async def node(self, request: Request, node: str = _NODE) -> Response:
        """One node, with its jobs and its tables."""
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            self._check_node(node, only)
            found = self._interface.node(node)
            if found is None:
                raise HTTPException(404, _NO_NODE.format(node))
            jobs = [row for row in found["jobs"] if only is None or row["user"] == only]
            return {**found, "jobs": jobs, "tables": own_tables(found["tables"], only)}

        return await self._respond(self._memory, request, work)

    async def node_series(
        self,
        request: Request,
        node: str = _NODE,
        metric: str = _METRIC,
        since: Optional[float] = _SINCE,
        until: Optional[float] = _UNTIL,
        points: int = _POINTS,
        fold: str = _FOLD,
        rate: bool = _RATE,
        source: str = _SOURCE,
    ) -> Response:
        """Values of a node over time; for an ordinary user since the first of the user's jobs there began."""
        table, column = _metric(metric)
        _choose("fold", fold, FOLDS)
        _choose("source", source, SOURCES)
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            start = since
            if only is not None:
                self._check_node(node, only)
                began = self._interface.there_since(node, only)
                start = began if since is None else max(since, began)
            query = SeriesQuery(0, table, column, node, start, until, points, fold, rate, source)
            if start is not None and until is not None and start > until:
                return _no_series(query, [])
            return self._series(query, only, f"node {node!r} has no {metric}, or you may not see it")

        return await self._respond(self._store, request, work)

    # -- QmemTools --

    async def qhost(self, request: Request) -> Response:
        """Hosts with their jobs, in the form of QmemTools' server."""
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            return _enveloped("qhost", lambda: own_hosts(self._interface.qhost(), only))

        return await self._respond(self._memory, request, work)

    async def qstat(self, request: Request) -> Response:
        """Owners with what their jobs requested and used, in the form of QmemTools' server."""
        only = visitor_of(request.scope).only

        def work() -> Mapping[str, Any]:
            return _enveloped("qstat", lambda: own_owners(self._interface.qstat(), only))

        return await self._respond(self._memory, request, work)

    # -- the page, and the description --

    async def index(self, request: Request) -> Response:
        """Return the page."""
        return self._file(INDEX, request, 0)

    async def static(self, request: Request, path: str = _FILE) -> Response:
        """Return a file of the page."""
        return self._file(path, request, MAX_AGE_S if path.startswith("vendor/") else 0)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description of this interface."""
        if not self._openapi and self._app is not None:  # rarely requested, and slow to build
            self._openapi = to_json(_described(self._app, self._access.is_open))
        return pack(self._openapi, _packed(request))

    def _file(self, name: str, request: Request, max_age_s: int) -> Response:
        if self._fresh_files:
            self._files = read_files(self._folder)
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404, "there is no such file")
        return file_answer(file, _packed(request), request.headers.get("if-none-match", ""), max_age_s)

    # -- shared --

    async def _respond(self, workers: Workers, request: Request, work: Callable[[], Mapping[str, Any]]) -> Response:
        """Return the answer of `work`, compressed in its thread, so that large answers do not delay other requests."""
        packed = _packed(request)
        user = visitor_of(request.scope).user
        whose = ("user", user) if user is not None else ("client", request.scope[CLIENT])
        words = (lambda content: content) if visitor_of(request.scope).only is None else _for_users
        return await workers.run(whose, lambda: answer(words(work()), packed))

    def _own(self, job: int, only: Optional[str]) -> Optional[Mapping[str, Optional[float]]]:
        """Return the visible part of a job for a user, as `Interface.own`; None for the whole job.

        Raises:
            HTTPException: 404 without such a part, as for an unknown job.
        """
        if only is None:
            return None
        own: Mapping[str, Optional[float]] = {}
        try:
            own = self._interface.own(job, only)
            if not own:
                self._interface.seek(job)  # else the answer would reveal that the job is another user's
        except ColmetError:  # without proof, the job counts as not the user's
            pass
        if not own:
            raise HTTPException(404, _NO_JOB.format(job))
        return own

    def _check_node(self, node: str, only: Optional[str]) -> None:
        if only is not None and node not in self._interface.nodes_of(only):
            raise HTTPException(404, _NO_NODE.format(node))

    def _series(self, query: SeriesQuery, only: Optional[str], lacking: str) -> Mapping[str, Any]:
        if not own_tables({query.table: ()}, only):
            raise HTTPException(404, lacking)
        try:
            found = self._interface.series(query)
        except ColmetError as err:
            return _no_series(query, [StoreWarning(err)])
        if found is None:
            raise HTTPException(404, lacking)
        return found


def _later(since: Optional[float], own: Optional[Mapping[str, Optional[float]]]) -> Optional[float]:
    """Return the start of the visible rows."""
    began = None if own is None else earliest(own)
    return since if began is None else began if since is None else max(since, began)


def own_hosts(hosts: Hosts, only: Optional[str]) -> Hosts:
    """Return the hosts with jobs of this user, and these jobs only; all if `only` is None."""
    if only is None:
        return hosts
    found: Hosts = {}
    for name, host in hosts.items():
        jobs = {number: job for number, job in host["jobs"].items() if job["owner"] == only}
        if jobs:
            found[name] = {**host, "jobs": jobs}
    return found


def own_owners(owners: Owners, only: Optional[str]) -> Owners:
    """Return the entry of this user; all owners if `only` is None."""
    return {name: owner for name, owner in owners.items() if only is None or name == only}


def own_tables(tables: Mapping[str, Any], only: Optional[str]) -> Mapping[str, Any]:
    """Return the tables visible to ordinary users; all if `only` is None."""
    return {name: table for name, table in tables.items() if only is None or not name.startswith(FACILITY)}


def _empty_job(job: int) -> dict[str, Any]:
    """Return the row of an unknown job."""
    return {**dict.fromkeys((*JOB_KEYS, "on", "time", "first", "last")), "job": job, "running": False}


def _for_users(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer without the store's own messages, as these may name files and hosts."""
    warnings = content.get("warnings", ())
    plain = [one for one in warnings if not isinstance(one, StoreWarning)]
    return content if len(plain) == len(warnings) else {**content, "warnings": [*plain, _STORE_FAILS]}


def _no_series(query: SeriesQuery, warnings: list[str]) -> dict[str, Any]:
    return {
        "job": query.job,
        "metric": f"{query.table}.{query.column}",
        "unit": None,
        "kind": None,
        "rate": query.rate,
        "since": query.since,
        "until": query.until,
        "step": None,
        "source": "none",
        "warnings": warnings,
        "series": [],
    }


def _enveloped(name: str, data: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    try:
        return envelope(name, data())
    except ColmetError as err:
        return {"success": False, "message": str(err), "data": {}}


def _metric(text: str) -> tuple[str, str]:
    table, dot, column = text.partition(".")
    if not (table and dot and column):
        raise HTTPException(400, "metric is not TABLE.COLUMN, such as cgroup_default.cpu_usage")
    return table, column


def _choose(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise HTTPException(400, f"{name} is {value!r:.80}; there are: {', '.join(values)}")


def _packed(request: Request) -> bool:
    return takes_gzip(request.headers.get("accept-encoding", ""))


async def _only_known_names(request: Request) -> None:
    """Refuse unknown (misspelt) and repeated parameters."""
    route = request.scope.get("route")
    known = [field.alias for field in route.dependant.query_params] if isinstance(route, APIRoute) else []
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            there = f"there are: {', '.join(known)}" if known else "there are none"
            raise HTTPException(400, f"there is no parameter {name!r:.80}; {there}")
        if given.count(name) > 1:
            raise HTTPException(400, f"{name} is given twice")


async def _not_valid(request: Request, err: Exception) -> Response:
    del request
    errors = err.errors() if isinstance(err, RequestValidationError) else []
    texts = [f"{error['loc'][-1]}: {error['msg']}" for error in errors[:5]]
    return failure(400, f"a value cannot be used: {'; '.join(texts)}")


async def _refused(request: Request, err: Exception) -> Response:
    del request
    if not isinstance(err, HTTPException):
        raise err
    text = str(err.detail)
    if err.status_code == 404 and text == "Not Found":
        text = "there is nothing at this address; /openapi.json lists all addresses"
    return failure(err.status_code, text, err.headers)


async def _busy(request: Request, err: Exception) -> Response:
    del request
    if not isinstance(err, Busy):
        raise err
    return too_many(err)


def _described(app: FastAPI, is_open: bool) -> dict[str, Any]:
    """Return FastAPI's OpenAPI description with corrections."""
    description = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = description["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if description["openapi"].startswith("3.0"):  # from pydantic 1, without null
        for model in models.MODELS:
            _add_nulls(model, schemas[model.__name__])
    for path, methods in description["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            for parameter in operation.get("parameters", []):
                name, schema = parameter["name"], parameter["schema"]
                if name == "sort":
                    schema["enum"] = list(JOB_SORTS if path.endswith("/jobs") else NODE_SORTS)
                elif name in _CHOICES:
                    schema["enum"] = list(_CHOICES[name])
                elif name == "metric":
                    schema["pattern"] = r"^[^.]+\..+$"
                    parameter["example"] = _EXAMPLES["/jobs/" in path]
                elif name == "job":
                    schema["format"] = "int64"
    if not is_open:
        description["components"]["securitySchemes"] = {
            "basic": {"type": "http", "scheme": "basic"},
            "token": {"type": "http", "scheme": "bearer"},
        }
        description["security"] = [{"basic": []}, {"token": []}]
    return description


def _add_nulls(model: Any, schema: dict[str, Any]) -> None:
    """Mark the nullable values of a model, as in OpenAPI 3.0."""
    for name, field in model.__fields__.items():
        inner = schema["properties"][name]
        if field.allow_none:
            inner["nullable"] = True
        for sub in field.sub_fields or []:
            if sub.allow_none and "items" in inner:
                inner["items"]["nullable"] = True
