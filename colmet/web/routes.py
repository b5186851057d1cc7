"""Answer the routes of the JSON interface, each user only with permitted data."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colmet import __version__
from colmet.batch.gridengine_memory import envelope
from colmet.common.errors import ColmetError
from colmet.common.live.summary import JOB_KEYS
from colmet.jobs.report.archived import UNREADABLE
from colmet.web import interface, models, stored_models
from colmet.web.access import Access
from colmet.web.catalogue import local_zone, measures_answer
from colmet.web.gate import CLIENT, visitor_of
from colmet.web.interface import JOB_SORTS, NODE_SORTS, SeriesOptions, choose, numbers_of, split_metric
from colmet.web.memory_answers import own_hosts
from colmet.web.node_history import HistoryQuery
from colmet.web.ownership import earliest, names_of
from colmet.web.queries import JobsQuery, NodesQuery, Queries
from colmet.web.recent_cache import FACILITY
from colmet.web.responses import answer, failure
from colmet.web.series_query import SeriesQuery
from colmet.web.store import ArchiveOpener, StoreWarning, find_in, warning_of
from colmet.web.workers import Busy, Workers

LATE_S = 60.0  # timeout of a request, answered with 429
NO_JOB = "job {} does not exist, or you may not see it"
_NO_NODE = "node {!r} does not exist, or you may not see it"

Work = Callable[[Optional[str]], Mapping[str, Any]]  # of the only user with visible jobs; None for all


@dataclass(eq=False)
class Routes:
    """The handlers of requests for JSON, one method for each path.

    Their docstrings are in the OpenAPI description. For the arguments see `colmet.web.server.build_app`.
    """

    queries: Queries
    access: Access
    gridengine: bool
    connections: Callable[[], int]
    archive: ArchiveOpener

    def __post_init__(self) -> None:
        self._memory = Workers("memory", 4, 256, 128, LATE_S)
        self._store = Workers("store", 4, 64, 8, LATE_S)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        api = "/api/v1"
        rows: list[interface.Route] = [
            (f"{api}/whoami", self.whoami, models.Whoami, False),
            (f"{api}/cluster", self.cluster, models.Cluster, False),
            (f"{api}/measures", self.measures, models.Measures, False),
            (f"{api}/jobs", self.jobs, models.Jobs, False),
            (f"{api}/jobs/{{job}}", self.job, models.Job, True),
            (f"{api}/jobs/{{job}}/series", self.job_series, models.Series, True),
            (f"{api}/jobs/{{job}}/completeness", self.completeness, stored_models.Completeness, True),
            (f"{api}/nodes", self.nodes, models.Nodes, False),
            (f"{api}/nodes/{{node}}", self.node, models.Node, True),
            (f"{api}/nodes/{{node}}/series", self.node_series, models.Series, True),
            (f"{api}/node-history", self.node_history, models.NodeHistory, True),
            (f"{api}/health", self.health, models.Health, True),
            (f"{api}/status", self.status, models.Status, True),
            ("/qhost", self.qhost, models.Qhost, False),
            ("/qstat", self.qstat, models.Qstat, False),
        ]
        interface.add_routes(app, rows)

    # -- everything --

    async def whoami(self, request: Request) -> Response:
        """Return the user of the request, and the version of the interface."""
        visitor = visitor_of(request.scope)
        content = {
            **{"user": visitor.user, "admin": visitor.is_admin, "projects": sorted(visitor.projects)},
            **{"version": __version__, "time": time.time(), "gridengine": self.gridengine},
            **{"zone": local_zone(), "sign_out": self.access.sign_out},
        }
        return await self.respond(self._memory, request, lambda _: {**content, "archive": self._has_archive()})

    async def status(self, request: Request) -> Response:
        """Return counters of this process, for administrators."""
        _for_administrators(request, "the status")
        return answer(
            {
                "version": __version__,
                "time": time.time(),
                "since": self.access.stats.since,
                "counts": {**self.access.stats.values(), **self.queries.counters()},
                "connections": self.connections(),
                "users": self.access.names,
                "waiting": {"memory": self._memory.pending, "store": self._store.pending},
            }
        )

    async def measures(self) -> Response:
        """Return the measures of charts and tables, with their columns, and the units of columns."""
        return answer(measures_answer())

    async def cluster(self, request: Request) -> Response:
        """Return totals of nodes and jobs. Ordinary users get totals of their own jobs."""

        def work(only: Optional[str]) -> Mapping[str, Any]:
            totals = self.queries.cluster(only)
            if only is None:
                return totals
            nodes = totals["nodes"]
            return {**totals, "nodes": {key: nodes[key] if key in ("heard", "silent") else None for key in nodes}}

        return await self.respond(self._memory, request, work)

    # -- jobs --

    async def jobs(
        self,
        request: Request,
        job: str = interface.JOBS,
        state: str = interface.STATE,
        user: str = interface.USER,
        node: str = interface.ON_NODE,
        text: str = interface.TEXT,
        since: Optional[float] = interface.SINCE,
        until: Optional[float] = interface.UNTIL,
        sort: str = interface.JOB_SORT,
        reverse: bool = interface.REVERSE,
        offset: int = interface.OFFSET,
        limit: int = interface.LIMIT,
    ) -> Response:
        """Return rows of jobs, running or in the memory of this process."""
        choose("state", state, interface.JOB_STATES)
        choose("sort", sort, JOB_SORTS)
        jobs = frozenset(numbers_of(job))

        def work(only: Optional[str]) -> Mapping[str, Any]:
            check_users([user] if user else [], only)
            whose = only if only is not None else user or None
            query = JobsQuery(whose, jobs, state, node, text, since, until, sort, reverse, offset, limit)
            page = self.queries.jobs(query)
            items = [row for row in page.items if only is None or row["user"] == only]
            return {**page._asdict(), "limit": limit, "items": items}

        return await self.respond(self._memory, request, work)

    async def job(self, request: Request, job: int = interface.JOB) -> Response:
        """Return a job, with its nodes and its tables; without any for a job in the archive alone."""
        projects = visitor_of(request.scope).projects

        def work(only: Optional[str]) -> Mapping[str, Any]:
            try:
                own = self.own(job, only)
                found = self.queries.job(job, own)
                if found is None:
                    raise HTTPException(404, NO_JOB.format(job))
            except ColmetError as err:
                return _without_samples(job, only, [warning_of(err)])
            except HTTPException:
                is_own = self._is_archived(job, only, ())
                if not is_own and not self._is_archived(job, only, projects):
                    raise
                return _without_samples(job, only if is_own else None, self.queries.unread(job))
            if only is not None:  # other nodes may name other users
                nodes = [{**row, "user": only} for row in found["nodes"]]
                found = {**found, "job": {**found["job"], "user": only}, "nodes": nodes}
            return with_unread({**found, "tables": own_tables(found["tables"], only)}, own)

        return await self.respond(self._store, request, work)

    async def job_series(
        self,
        request: Request,
        job: int = interface.JOB,
        metric: str = interface.METRIC,
        node: str = interface.ON_NODE,
        options: SeriesOptions = interface.SERIES,
    ) -> Response:
        """Return values of a job over time."""
        table, column = split_metric(metric)
        options.check()

        def work(only: Optional[str]) -> Mapping[str, Any]:
            query = SeriesQuery(job, table, column, node, *options)
            try:
                own = self.own(job, only)
            except ColmetError as err:
                return _no_series(query, [warning_of(err)])
            query = query._replace(since=later(options.since, own), own=own)
            return with_unread(self._series(query, only, f"job {job} has no {metric}, or you may not see it"), own)

        return await self.respond(self._store, request, work)

    async def completeness(
        self,
        request: Request,
        job: int = interface.JOB,
        since: Optional[float] = interface.SINCE,
        until: Optional[float] = interface.UNTIL,
    ) -> Response:
        """Return the stored share of a job's samples, and its gaps."""

        def work(only: Optional[str]) -> Mapping[str, Any]:
            try:
                own = self.own(job, only)
                found = self.queries.completeness(job, later(since, own), until, own)
            except ColmetError as err:
                nothing = dict.fromkeys(("share", "expected", "present"))
                return {"job": job, **nothing, "hosts": [], "warnings": [warning_of(err)]}
            if found is None:
                raise HTTPException(404, NO_JOB.format(job))
            return with_unread(found, own)

        return await self.respond(self._store, request, work)

    # -- nodes --

    async def nodes(
        self,
        request: Request,
        text: str = interface.NAME_TEXT,
        sort: str = interface.NODE_SORT,
        reverse: bool = interface.REVERSE,
        offset: int = interface.OFFSET,
        limit: int = interface.LIMIT,
    ) -> Response:
        """Return rows of nodes. Ordinary users get the nodes of their own jobs."""
        choose("sort", sort, NODE_SORTS)

        def work(only: Optional[str]) -> Mapping[str, Any]:
            names = None if only is None else self.queries.nodes_of(only)
            page = self.queries.nodes(NodesQuery(names, text, sort, reverse, offset, limit))
            items = [row for row in page.items if names is None or row["node"] in names]
            return {**page._asdict(), "limit": limit, "items": items}

        return await self.respond(self._memory, request, work)

    async def node(self, request: Request, node: str = interface.NODE) -> Response:
        """Return a node, with its jobs and its tables."""

        def work(only: Optional[str]) -> Mapping[str, Any]:
            self._check_node(node, only)
            found = self.queries.node(node)
            if found is None:
                raise HTTPException(404, _NO_NODE.format(node))
            jobs = [row for row in found["jobs"] if only is None or row["user"] == only]
            return {**found, "jobs": jobs, "tables": own_tables(found["tables"], only)}

        return await self.respond(self._memory, request, work)

    async def node_series(
        self,
        request: Request,
        node: str = interface.NODE,
        metric: str = interface.METRIC,
        options: SeriesOptions = interface.SERIES,
    ) -> Response:
        """Return values of a node over time. Ordinary users get them from the start of their first job there."""
        table, column = split_metric(metric)
        options.check()

        def work(only: Optional[str]) -> Mapping[str, Any]:
            limited = options
            if only is not None:
                self._check_node(node, only)
                began = self.queries.there_since(node, only)
                limited = options._replace(since=max(began, began if options.since is None else options.since))
            query = SeriesQuery(0, table, column, node, *limited)
            return self._series(query, only, f"node {node!r} has no {metric}, or you may not see it")

        return await self.respond(self._store, request, work)

    async def node_history(
        self,
        request: Request,
        measure: str = interface.MEASURE,
        span: str = interface.SPAN,
        text: str = interface.NAME_TEXT,
        offset: int = interface.OFFSET,
        limit: int = interface.LIMIT,
    ) -> Response:
        """Return the values of a measure by node and interval, for administrators."""
        _for_administrators(request, "values of all nodes")
        choose("measure", measure, interface.HISTORY_MEASURES)
        choose("span", span, interface.HISTORY_SPANS)
        query = HistoryQuery(measure, span, text, offset, limit)
        return await self.respond(self._memory, request, lambda only: self.queries.history(query))

    async def health(self, request: Request) -> Response:
        """Return the state of the collector, its outputs and the nodes, and the verdict, for administrators."""
        _for_administrators(request, "the health of the collector")
        return await self.respond(self._memory, request, lambda only: self.queries.health())

    # -- QmemTools --

    async def qhost(self, request: Request) -> Response:
        """Return hosts with their jobs, in the form of QmemTools' server."""
        return await self._qmem(request, "qhost", lambda only: own_hosts(self.queries.qhost(), only))

    async def qstat(self, request: Request) -> Response:
        """Return owners with requests and use of their jobs, in the form of QmemTools' server."""

        def owners(only: Optional[str]) -> Mapping[str, Any]:
            return {name: owner for name, owner in self.queries.qstat().items() if only in (None, name)}

        return await self._qmem(request, "qstat", owners)

    async def _qmem(self, request: Request, name: str, data: Work) -> Response:
        def work(only: Optional[str]) -> Mapping[str, Any]:
            try:
                return envelope(name, data(only))
            except ColmetError as err:
                return {"success": False, "message": str(err), "data": {}}

        return await self.respond(self._memory, request, work)

    # -- shared --

    async def respond(self, workers: Workers, request: Request, work: Work) -> Response:
        """Return the answer of `work`, encoded in its thread, so that large answers do not delay other requests."""

        def make(only: Optional[str]) -> Response:
            content = work(only)
            return answer(content if only is None else for_users(content))

        return await self.run(workers, request, make)

    async def run(self, workers: Workers, request: Request, make: Callable[[Optional[str]], Response]) -> Response:
        """Return an answer made in a thread of `workers`, for the only user with visible jobs; None for all.

        Where the store or the archive cannot be read, the answer is 503; administrators alone see why.
        """

        def made(only: Optional[str]) -> Response:
            try:
                return make(only)
            except Busy:
                raise
            except ColmetError as err:
                return failure(503, str(err) if only is None else UNREADABLE)

        visitor = visitor_of(request.scope)
        whose = ("user", visitor.user) if visitor.user is not None else ("client", request.scope[CLIENT])
        return await workers.run(whose, made, visitor.only)

    def own(self, job: int, only: Optional[str]) -> Optional[Mapping[str, Optional[float]]]:
        """Return the visible part of a job for a user, as `Queries.own`; None for the whole job.

        Raises:
            HTTPException: 404 without such a part, as for an unknown job.
            ColmetError: the store cannot be read, and the archive has the job as this user's.
        """
        if only is None:
            return None
        own: Mapping[str, Optional[float]] = {}
        try:
            own = self.queries.own(job, only)
            if not own:
                self.queries.seek(job)  # else the answer would reveal that the job is another user's
        except ColmetError:
            if self._is_archived(job, only, ()):
                raise
            # without proof, the job counts as not the user's
        if not own:
            raise HTTPException(404, NO_JOB.format(job))
        return own

    def _has_archive(self) -> bool:
        """Return whether there is an archive, though it may be unreadable."""
        try:
            archive = self.archive()
        except ColmetError:
            return True
        if archive is not None:
            archive.close()
        return archive is not None

    def _is_archived(self, job: int, only: Optional[str], projects: Collection[str]) -> bool:
        """Return whether the archive has a job, for its user (None for all) or for the leader of some projects.

        False if it cannot be read.
        """
        try:
            users = None if only is None else names_of(only)
            return find_in(self.archive, job, None, users, sorted(projects)) is not None
        except ColmetError:
            return False

    def _check_node(self, node: str, only: Optional[str]) -> None:
        if only is not None and node not in self.queries.nodes_of(only):
            raise HTTPException(404, _NO_NODE.format(node))

    def _series(self, query: SeriesQuery, only: Optional[str], lacking: str) -> Mapping[str, Any]:
        if query.since is not None and query.until is not None and query.since > query.until:
            return _no_series(query, [])
        if not own_tables({query.table: ()}, only):
            raise HTTPException(404, lacking)
        try:
            found = self.queries.series(query)
        except ColmetError as err:
            return _no_series(query, [warning_of(err)])
        if found is None:
            raise HTTPException(404, lacking)
        return found


def _for_administrators(request: Request, what: str) -> None:
    """Refuse ordinary users, with status 404."""
    if visitor_of(request.scope).only is not None:
        raise HTTPException(404, f"{what}: for administrators")


def check_users(asked: Sequence[str], only: Optional[str]) -> None:
    """Refuse the question of an ordinary user for jobs of others, with status 403."""
    if only is not None and not set(asked).issubset(names_of(only)):
        raise HTTPException(
            403, f"{only} sees the own jobs only: ask without other users, or for a project that you lead"
        )


def own_tables(tables: Mapping[str, Any], only: Optional[str]) -> Mapping[str, Any]:
    """Return the tables visible to ordinary users; all if `only` is None."""
    return {name: table for name, table in tables.items() if only is None or not name.startswith(FACILITY)}


def for_users(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer without the store's own messages, as these may name files and hosts."""
    warnings = content.get("warnings", ())
    plain = [one for one in warnings if not isinstance(one, StoreWarning)]
    return content if len(plain) == len(warnings) else {**content, "warnings": [*plain, UNREADABLE]}


def with_unread(content: Mapping[str, Any], own: Optional[Mapping[str, Optional[float]]]) -> Mapping[str, Any]:
    """Return an answer with the warning that rows of the user from before the start of this process may be missing."""
    err = getattr(own, "unread", None)
    if err is None or warning_of(err) in content["warnings"]:
        return content
    return {**content, "warnings": [*content["warnings"], warning_of(err)]}


def later(since: Optional[float], own: Optional[Mapping[str, Optional[float]]]) -> Optional[float]:
    """Return the start of the visible rows."""
    begins = [at for at in (since, None if own is None else earliest(own)) if at is not None]
    return max(begins, default=None)


def _without_samples(job: int, user: Optional[str], warnings: list[str]) -> dict[str, Any]:
    nothing = dict.fromkeys((*JOB_KEYS, "on", "time", "first", "last"))
    row = {**nothing, "job": job, "user": user, "running": False}
    return {"job": row, "nodes": [], "hosts": [], "tables": {}, "absent": {}, "stored": False, "warnings": warnings}


def _no_series(query: SeriesQuery, warnings: list[str]) -> dict[str, Any]:
    metric = f"{query.table}.{query.column}"
    unknown = dict.fromkeys(("unit", "kind", "step"))
    asked = {"job": query.job, "metric": metric, "rate": query.rate, "since": query.since, "until": query.until}
    return {**asked, **unknown, "source": "none", "warnings": warnings, "series": [], "together": None}
