"""Answer the routes for stored data of a job: its report, and its rows by pages, as they are stored."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colmet.common.errors import ColmetError
from colmet.jobs.report.archived import joined, without_others
from colmet.jobs.report.document import document_of
from colmet.stored.series import HostRows, RowQuery, Series, groups_of
from colmet.web import interface, stored_models
from colmet.web.archive_routes import HTML, curves_of
from colmet.web.gate import visitor_of
from colmet.web.interface import ARCHIVE, MAX_TIME, PAGE, PICTURE, REPORTS, add_routes
from colmet.web.ownership import names_of
from colmet.web.reports import MissingLibrary, Reporter, ReportQuery, TooLarge
from colmet.web.responses import encoded, failure
from colmet.web.routes import LATE_S, NO_JOB, Routes, later, own_tables, with_unread
from colmet.web.store import ArchiveOpener, StoreReader, find_in, warning_of
from colmet.web.workers import Workers

MAX_ROWS = 50_000  # of a page
MAX_VALUES = 500_000  # of a page


class Mark(NamedTuple):
    """The place of the first row that follows a page."""

    time: int
    nth: int  # among the rows of this time and host
    host: str

    def text(self) -> str:
        """As in a parameter."""
        return f"{self.time}.{self.nth}.{self.host}"

    @classmethod
    def parse(cls, text: str) -> Optional["Mark"]:
        """Parse a parameter; None if it is malformed."""
        time, _, rest = text.partition(".")
        nth, _, host = rest.partition(".")
        digits = [one for one in (time, nth) if one.isascii() and one.isdigit() and len(one) < 16]
        return cls(int(time), int(nth), host) if len(digits) == 2 and host else None


class RowsQuery(NamedTuple):
    """A query for rows."""

    job: int
    table: str
    columns: Optional[Sequence[str]] = None  # None for all
    node: str = ""  # only this node; "" for all
    since: Optional[float] = None  # seconds since 1970, inclusive
    until: Optional[float] = None
    after: Optional[Mark] = None  # the end of the page before
    limit: int = MAX_ROWS  # 0: only the number of rows and their times
    own: Optional[Mapping[str, Optional[float]]] = None  # only these hosts, as `Queries.own`; None for all


def stored_rows(store: StoreReader, query: RowsQuery) -> Mapping[str, Any]:
    """Return a page of rows; ColmetError if the store cannot be read."""
    tables, warnings = store.tables(query.job, query.since)
    there = tables.get(query.table)
    hosts = None if query.own is None else list(query.own)
    if query.node:
        hosts = [query.node] if hosts is None or query.node in hosts else []
    if there is None or hosts == []:
        return _nothing(query.job, query.table, warnings)
    names = [name for name in there if query.columns is None or name in query.columns] if query.limit else []
    made, warnings = store.read(
        RowQuery(query.job, query.table, names, query.since, query.until, hosts),
        lambda rows: _page(query, _Cut(query, rows), names),
    )
    return {"job": query.job, "table": query.table, **made, "warnings": list(warnings)}


def _nothing(job: int, table: str, warnings: Sequence[str]) -> Mapping[str, Any]:
    nothing: dict[str, Any] = {"total": 0, "first": None, "last": None, "kinds": {}, "rows": [], "next": None}
    return {"job": job, "table": table, **nothing, "warnings": list(warnings)}


class _Cut:
    """The visible rows of a query, from rows of a slightly longer interval."""

    def __init__(self, query: RowsQuery, rows: HostRows) -> None:
        self._first = -math.inf if query.since is None else query.since
        self._last = math.inf if query.until is None else query.until
        self._starts = {host: at for host, at in (query.own or {}).items() if at is not None}
        self._rows = rows
        self._counts, self._ends = rows.counts, (rows.first, rows.last)
        hosts = {host for host in rows.counts if query.own is None or host in query.own}
        # the rows of one user are cut before they are counted: by their times alone, some hosts at once
        if self._starts:
            spans: dict[str, tuple[int, int, int]] = {}
            for group in groups_of([(rows, 0)]):
                for one in map(self._cut, rows.read([host for host in group if host in hosts], ())):
                    if len(one):
                        spans[one.host] = len(one), int(one.times[0]), int(one.times[-1])
            self._counts = {host: count for host, (count, _, _) in spans.items()}
            self._ends = (
                min([at for _, at, _ in spans.values()], default=0),
                max([at for *_, at in spans.values()], default=0),
            )
        self.hosts = [host for host in sorted(hosts) if host in self._counts]

    def read(self, host: str) -> Optional[Series]:
        found = [self._cut(one) for one in self._rows.read([host])]
        return found[0] if found and len(found[0]) else None

    def _cut(self, series: Series) -> Series:
        first = max(self._first, self._starts.get(series.host, -math.inf))
        if first == -math.inf and self._last == math.inf:
            return series
        return series.within(math.ceil(max(first, 0)), math.floor(min(self._last, MAX_TIME)))

    def outline(self) -> dict[str, Any]:
        """Return the number of rows and their times; of a longer interval, as it need not be exact."""
        total = sum(self._counts[host] for host in self.hosts)
        return {"total": total, "first": self._ends[0] or None, "last": self._ends[1] or None}


def _page(query: RowsQuery, cut: _Cut, names: Sequence[str]) -> dict[str, Any]:
    made = {**cut.outline(), "kinds": {}, "rows": [], "next": None}
    room = min(query.limit, MAX_ROWS, max(1, MAX_VALUES // (len(names) + 1)))
    if not query.limit:
        return made
    for host in cut.hosts:
        if query.after is not None and host < query.after.host:
            continue
        series = cut.read(host)
        if series is None:
            continue
        begin = 0
        if query.after is not None and host == query.after.host:
            begin = int(np.searchsorted(series.times, query.after.time, "left")) + query.after.nth
        if begin >= len(series):
            continue
        if not room:
            made["next"] = _mark(series, begin).text()
            break
        end = min(len(series), begin + room)
        room -= end - begin
        for name, column in series.columns.items():
            if made["kinds"].get(name, "i") == "i":  # an integer on one host may be a fraction on another
                made["kinds"][name] = column.dtype.kind.replace("u", "i")
        part = {name: _values(column[begin:end]) for name, column in series.columns.items()}
        made["rows"].append({"node": host, "times": series.times[begin:end].tolist(), "columns": part})
        if end < len(series):
            made["next"] = _mark(series, end).text()
            break
    return made


def _mark(series: Series, at: int) -> Mark:
    time = int(series.times[at])
    return Mark(time, at - int(np.searchsorted(series.times, time, "left")), series.host)


def _values(column: npt.NDArray[Any]) -> list[Any]:
    """Return stored values for JSON: None for a missing one."""
    if column.dtype.kind == "S":
        return [one.decode("utf-8", "replace") if one else None for one in column.tolist()]
    if column.dtype.kind == "f":
        return [None if one == -1 or not math.isfinite(one) else one for one in column.tolist()]
    return [None if one == -1 else one for one in column.tolist()]


_HEADERS: Mapping[str, Mapping[str, str]] = {"json": {}, "html": HTML, "png": {"Content-Type": "image/png"}}


class Stored(NamedTuple):
    """What reads stored data; `store` is None if it is not readable."""

    reporter: Reporter = lambda query: None
    store: Optional[StoreReader] = None
    archive: ArchiveOpener = lambda: None


class ReportOptions(NamedTuple):
    """The parameters of every report, as in `ReportQuery`."""

    since: Optional[float] = interface.SINCE
    until: Optional[float] = interface.UNTIL
    start: Optional[int] = interface.JOB_START


REPORT_OPTIONS = interface.options_in(ReportOptions)


class StoredRoutes:
    """The handlers, one method for each path.

    Their docstrings are in the OpenAPI description. `archived` answer the requests for the archive.
    """

    def __init__(self, routes: Routes, stored: Stored, archived: Workers) -> None:
        self._routes = routes
        self._reporter, self._store, self._archive = stored
        self._archived = archived
        self._reading = Workers("rows", 2, 32, 4, LATE_S)
        # a report at a time for each user, as it needs seconds of CPU time
        self._reports = Workers("report", 2, 32, 1, LATE_S)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        job = "/api/v1/jobs/{job}"
        add_routes(app, [(f"{job}/tables", self.tables, stored_models.StoredTables, True)])
        add_routes(app, [(f"{job}/rows", self.rows, stored_models.Rows, True)])
        add_routes(app, [(f"{job}/summary", self.summary, stored_models.JobSummary, False)], ARCHIVE)
        add_routes(app, [(f"{job}/report", self.report, stored_models.Report, True)], REPORTS)
        add_routes(app, [(f"{job}/report.html", self.report_page, None, True)], {**REPORTS, **PAGE})
        add_routes(app, [(f"{job}/report.png", self.report_picture, None, True)], {**REPORTS, **PICTURE})

    async def tables(
        self, request: Request, job: int = interface.JOB, since: Optional[float] = interface.SINCE
    ) -> Response:
        """Return the tables of a job in the store, and their columns."""

        def work(only: Optional[str]) -> Mapping[str, Any]:
            try:
                own = self._routes.own(job, only)
                found = None if self._store is None else self._store.tables(job, later(since, own))
            except ColmetError as err:
                return {"job": job, "tables": {}, "warnings": [warning_of(err)]}
            if found is None or not found.value:
                raise HTTPException(404, NO_JOB.format(job))
            return {"job": job, "tables": own_tables(found.value, only), "warnings": found.warnings}

        return await self._routes.respond(self._reading, request, work)

    async def rows(
        self,
        request: Request,
        job: int = interface.JOB,
        table: str = interface.TABLE,
        columns: str = interface.COLUMNS,
        node: str = interface.ON_NODE,
        since: Optional[float] = interface.SINCE,
        until: Optional[float] = interface.UNTIL,
        after: str = interface.AFTER,
        limit: int = interface.ROWS,
    ) -> Response:
        """Return stored rows of a job, by pages. Ordinary users get their own rows."""
        mark = Mark.parse(after) if after else None
        if after and mark is None:
            raise HTTPException(400, "after is not the `next` of a page")
        names = [name for name in columns.split(",") if name] if columns else None

        def work(only: Optional[str]) -> Mapping[str, Any]:
            if self._store is None or not own_tables({table: ()}, only):
                raise HTTPException(404, NO_JOB.format(job))
            try:
                own = self._routes.own(job, only)
                query = RowsQuery(job, table, names, node, later(since, own), until, mark, limit, own)
                return with_unread(stored_rows(self._store, query), own)
            except ColmetError as err:
                return _nothing(job, table, [warning_of(err)])

        return await self._routes.respond(self._reading, request, work)

    async def summary(
        self, request: Request, job: int = interface.JOB, start: Optional[int] = interface.JOB_START
    ) -> Response:
        """Return the report of a job from the archive alone, within milliseconds; null if the archive lacks the job."""
        projects = sorted(visitor_of(request.scope).projects)

        def work(only: Optional[str]) -> Mapping[str, Any]:
            found = find_in(self._archive, job, start, None if only is None else names_of(only), projects)
            report = joined(None, found, False)
            if found is None or report is None:
                return {"report": None, "footprint": None}
            if only is not None:
                report = without_others(report)
            return {"report": document_of(report), "footprint": curves_of(found.summary.get("footprint"))}

        return await self._routes.respond(self._archived, request, work)

    async def report(
        self, request: Request, job: int = interface.JOB, options: ReportOptions = REPORT_OPTIONS
    ) -> Response:
        """Return the report of a job from its stored rows, or from the archive where these are gone.

        Ordinary users get no energy of other jobs.
        """
        return await self._report(request, job, options, "json")

    async def report_page(
        self,
        request: Request,
        job: int = interface.JOB,
        options: ReportOptions = REPORT_OPTIONS,
        zone: str = interface.ZONE,
    ) -> Response:
        """Return the report of a job as a page with charts."""
        return await self._report(request, job, options, "html", zone)

    async def report_picture(
        self,
        request: Request,
        job: int = interface.JOB,
        options: ReportOptions = REPORT_OPTIONS,
        zone: str = interface.ZONE,
    ) -> Response:
        """Return the report of a job as a picture."""
        return await self._report(request, job, options, "png", zone)

    async def _report(self, request: Request, job: int, options: ReportOptions, form: str, zone: str = "") -> Response:
        since, until = [None if at is None else int(at) for at in (options.since, options.until)]
        projects = sorted(visitor_of(request.scope).projects)
        query = ReportQuery(
            job, since, until, form=form, start=options.start, zone=interface.zone_of(zone), projects=projects
        )

        def make(only: Optional[str]) -> Response:
            try:
                body = self._reporter(self._visible(query, only))
            except MissingLibrary as err:
                return failure(501, str(err))
            except TooLarge as err:
                return failure(503, str(err))
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
            unread = getattr(own, "unread", None) is not None
        except (HTTPException, ColmetError) as err:  # no rows: they may be gone, or cannot be read
            unread = isinstance(err, ColmetError)
            if find_in(self._archive, query.job, query.start, users, query.projects) is None:
                raise
        return query._replace(own=own, users=users, is_unread=unread)
