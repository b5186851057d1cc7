"""Answer the routes for stored data of a job: its report, and its rows."""

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colmet.common.errors import ColmetError
from colmet.jobs.report.archived import UNREADABLE, find, joined, without_others
from colmet.jobs.report.document import document_of
from colmet.web import archive_models, models, parameters
from colmet.web.archive_routes import HTML, Opener, curves_of
from colmet.web.gate import visitor_of
from colmet.web.interface import warning_of
from colmet.web.openapi import ARCHIVE, PAGE, PICTURE, REPORTS
from colmet.web.reports import MissingLibrary, Reporter, ReportQuery
from colmet.web.responses import answer, encoded, failure
from colmet.web.routes import LATE_S, NO_JOB, Routes, add_routes, later, names_of, own_tables
from colmet.web.stored_rows import Mark, RowsQuery, RowsReader
from colmet.web.workers import Busy, Workers

_HEADERS: Mapping[str, Mapping[str, str]] = {
    "json": {},
    "html": HTML,
    "png": {"Content-Type": "image/png"},
}


class Stored(NamedTuple):
    """What reads stored data; None without a readable store."""

    reporter: Optional[Reporter] = None
    rows: Optional[RowsReader] = None
    archive: Optional[Opener] = None


class StoredRoutes:
    """The handlers, one method for each path.

    Their docstrings are in the OpenAPI description.

    Args:
        routes: the other handlers, with the rules of access.
        stored: reads the store.
        archived: answer the requests for the archive.
    """

    def __init__(self, routes: Routes, stored: Stored, archived: Workers) -> None:
        self._routes = routes
        self._reporter = stored.reporter
        self._rows = stored.rows
        self._archive = stored.archive
        self._archived = archived
        self._reading = Workers("rows", 2, 32, 4, LATE_S)
        # a report at a time for each user, as it needs seconds of CPU time
        self._reports = Workers("report", 2, 32, 1, LATE_S)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        job = "/api/v1/jobs/{job}"
        add_routes(app, [(f"{job}/tables", self.tables, models.StoredTables, True)])
        add_routes(app, [(f"{job}/rows", self.rows, models.Rows, True)])
        add_routes(app, [(f"{job}/summary", self.summary, archive_models.JobSummary, False)], ARCHIVE)
        add_routes(app, [(f"{job}/report", self.report, models.Report, True)], REPORTS)
        add_routes(app, [(f"{job}/report.html", self.report_page, None, True)], {**REPORTS, **PAGE})
        add_routes(app, [(f"{job}/report.png", self.report_picture, None, True)], {**REPORTS, **PICTURE})

    async def tables(
        self, request: Request, job: int = parameters.JOB, since: Optional[float] = parameters.SINCE
    ) -> Response:
        """Return the tables of a job in the store, and their columns."""

        def work(only: Optional[str]) -> Mapping[str, Any]:
            try:
                own = self._routes.own(job, only)
                found = None if self._rows is None else self._rows.tables(job, later(since, own))
            except ColmetError as err:
                return {"job": job, "tables": {}, "warnings": [warning_of(err)]}
            if found is None:
                raise HTTPException(404, NO_JOB.format(job))
            return {**found, "tables": own_tables(found["tables"], only)}

        return await self._routes.respond(self._reading, request, work)

    async def rows(
        self,
        request: Request,
        job: int = parameters.JOB,
        table: str = parameters.TABLE,
        columns: str = parameters.COLUMNS,
        node: str = parameters.ON_NODE,
        since: Optional[float] = parameters.SINCE,
        until: Optional[float] = parameters.UNTIL,
        after: str = parameters.AFTER,
        limit: int = parameters.ROWS,
    ) -> Response:
        """Return stored rows of a job, by pages. Ordinary users get their own rows."""
        mark = Mark.parse(after) if after else None
        if after and mark is None:
            raise HTTPException(400, "after is not the `next` of a page")
        names = [name for name in columns.split(",") if name] if columns else None

        def work(only: Optional[str]) -> Mapping[str, Any]:
            if self._rows is None or not own_tables({table: ()}, only):
                raise HTTPException(404, NO_JOB.format(job))
            try:
                own = self._routes.own(job, only)
                query = RowsQuery(job, table, names, node, later(since, own), until, mark, limit, own)
                return self._rows.page(query)
            except ColmetError as err:
                nothing: dict[str, Any] = {"total": 0, "first": None, "last": None, "kinds": {}, "rows": []}
                return {"job": job, "table": table, **nothing, "next": None, "warnings": [warning_of(err)]}

        return await self._routes.respond(self._reading, request, work)

    async def summary(
        self, request: Request, job: int = parameters.JOB, start: Optional[int] = parameters.JOB_START
    ) -> Response:
        """Return the report of a job from the archive alone, within milliseconds; null if the archive lacks the job."""
        projects = sorted(visitor_of(request.scope).projects)

        def work(only: Optional[str]) -> Mapping[str, Any]:
            archive = None if self._archive is None else self._archive()
            with contextlib.nullcontext() if archive is None else archive:
                users = None if only is None else names_of(only)
                found = None if archive is None else find(archive, job, start, users, projects)
            report = joined(None, found, False)
            if found is None or report is None:
                return {"report": None, "footprint": None}
            if only is not None:
                report = without_others(report)
            return {"report": document_of(report), "footprint": curves_of(found.summary.get("footprint"))}

        def make(only: Optional[str]) -> Response:
            try:
                return answer(work(only))
            except ColmetError as err:
                return failure(503, str(err) if only is None else UNREADABLE)

        return await self._routes.run(self._archived, request, make)

    async def report(
        self,
        request: Request,
        job: int = parameters.JOB,
        since: Optional[float] = parameters.SINCE,
        until: Optional[float] = parameters.UNTIL,
        start: Optional[int] = parameters.JOB_START,
    ) -> Response:
        """Return the report of a job from its stored rows, or from the archive where these are gone.

        Ordinary users get no energy of other jobs.
        """
        return await self._report(request, ReportQuery(job, _second(since), _second(until), start=start))

    async def report_page(
        self,
        request: Request,
        job: int = parameters.JOB,
        since: Optional[float] = parameters.SINCE,
        until: Optional[float] = parameters.UNTIL,
        start: Optional[int] = parameters.JOB_START,
        zone: str = parameters.ZONE,
    ) -> Response:
        """Return the report of a job as a page with charts."""
        place = parameters.zone_of(zone)
        query = ReportQuery(job, _second(since), _second(until), form="html", start=start, zone=place)
        return await self._report(request, query)

    async def report_picture(
        self,
        request: Request,
        job: int = parameters.JOB,
        since: Optional[float] = parameters.SINCE,
        until: Optional[float] = parameters.UNTIL,
        start: Optional[int] = parameters.JOB_START,
        zone: str = parameters.ZONE,
    ) -> Response:
        """Return the report of a job as a picture."""
        place = parameters.zone_of(zone)
        query = ReportQuery(job, _second(since), _second(until), form="png", start=start, zone=place)
        return await self._report(request, query)

    async def _report(self, request: Request, query: ReportQuery) -> Response:
        projects = sorted(visitor_of(request.scope).projects)

        def make(only: Optional[str]) -> Response:
            try:
                visible = self._visible(query._replace(projects=projects), only)
                body = None if self._reporter is None else self._reporter(visible)
            except MissingLibrary as err:
                return failure(501, str(err))
            except Busy:
                raise
            except ColmetError as err:
                return failure(503, str(err) if only is None else UNREADABLE)
            if body is None:
                raise HTTPException(404, NO_JOB.format(query.job))
            return encoded(body, _HEADERS[query.form])

        return await self._routes.run(self._reports, request, make)

    def _visible(self, query: ReportQuery, only: Optional[str]) -> ReportQuery:
        """Return the query for the visible rows and summaries; HTTPException 404 without any."""
        if only is None:
            return query
        users = names_of(only)
        own: Mapping[str, Optional[float]] = {}
        unread = False
        try:
            own = self._routes.own(query.job, only) or {}
        except (HTTPException, ColmetError) as err:  # no rows: they may be gone, or cannot be read
            unread = isinstance(err, ColmetError)
            archive = None if self._archive is None else self._archive()
            if archive is None:
                raise
            with archive:
                if find(archive, query.job, query.start, users, query.projects) is None:
                    raise
        return query._replace(own=own, users=users, is_unread=unread)


def _second(at: Optional[float]) -> Optional[int]:
    return None if at is None else int(at)
