"""Answer the routes of the job archive: lists of jobs, one job, and usage; ordinary users get their own jobs.

The leader of a project gets all of its jobs, if the question names this project.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colmet.common.errors import ColmetError
from colmet.jobs.archive.derived import LISTED
from colmet.jobs.archive.queries import (
    SORTS,
    Factors,
    JobArchive,
    JobFilter,
    QueryError,
    Row,
    UsageGroup,
    check_groups,
    read_factors,
    total_of,
)
from colmet.jobs.columns import FOOTPRINT, LARGE
from colmet.jobs.grades import GRADES, grade_of_usage, graded_jobs, grades_of
from colmet.jobs.report import jobs_page
from colmet.jobs.report.archived import find
from colmet.jobs.report.jobs_page import POLICY
from colmet.jobs.report.several import SeveralJobs, document_of_jobs, gather_jobs, made_of
from colmet.web import interface, stored_models
from colmet.web.access import Visitor
from colmet.web.gate import visitor_of
from colmet.web.interface import ARCHIVE, PAGE, add_routes, choose, some_text
from colmet.web.ownership import names_of
from colmet.web.responses import answer, encoded
from colmet.web.routes import LATE_S, NO_JOB, Routes, check_users
from colmet.web.series import short_values
from colmet.web.store import ArchiveOpener
from colmet.web.stored_models import SHOWN
from colmet.web.workers import Workers

# Of an ordinary user's job: the energy of whole nodes has that of other jobs.
HIDDEN = frozenset({"node_joules"})
_LARGE = frozenset(column.name for column in LARGE)
_NO_FACTORS = "CO2 and cost are missing: their factors cannot be read"
_NO_ARCHIVE = "this collector keeps no archive of jobs"

# Headers of a report as a page.
HTML: Mapping[str, str] = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
}
Work = Callable[[JobArchive, Optional[str]], Mapping[str, Any]]


class ListOptions(NamedTuple):
    """The conditions of a list of jobs and of usage, as in `JobFilter`."""

    job: str = interface.JOBS
    user: str = some_text("only jobs of these users, separated by commas; ordinary users get their own")
    project: str = some_text("only jobs of these projects, separated by commas")
    queue: str = some_text("only jobs of these queues, separated by commas")
    state: str = some_text("only jobs in these states, separated by commas")
    host: str = some_text("only jobs that ran on one of these hosts, separated by commas")
    array: str = some_text("only jobs of this array")
    task: str = some_text("only this task of an array, as its batch system prints it: 17_3")
    name: str = some_text("part of the job's name, in any case")
    since: Optional[float] = interface.SINCE
    until: Optional[float] = interface.UNTIL
    efficiency_below: Optional[float] = Query(
        None, ge=0, le=1, description="only jobs that used less than this share of their allocated CPU time"
    )
    rule: str = some_text("only jobs with this rule of advice")

    def seen_by(self, visitor: Visitor) -> Optional[str]:
        """Return the only user whose jobs the answer may have; None for all users."""
        named = _listed(self.project)
        return None if named and visitor.projects.issuperset(named) else visitor.only

    def where(self, whose: Optional[str]) -> JobFilter:
        """Return the conditions, for the only user with visible jobs (None: all); status 403 for jobs of others."""
        asked = _listed(self.user)
        check_users(asked, whose)
        return JobFilter(
            jobs=interface.numbers_of(self.job),
            users=asked if whose is None else names_of(whose),
            projects=_listed(self.project),
            queues=_listed(self.queue),
            states=_listed(self.state),
            hosts=_listed(self.host),
            array=self.array,
            task=self.task,
            name=self.name,
            since=self.since,
            until=self.until,
            efficiency_below=self.efficiency_below,
            rule=self.rule,
            only_own_hosts=whose is not None,
        )

    def is_empty(self) -> bool:
        """Return whether the interval ends before its start; QueryError or status 400 for other unusable conditions."""
        if self.since is None or self.until is None or self.since <= self.until:
            return False
        self._replace(until=None).where(None).check()
        return True


LIST = interface.options_in(ListOptions)


class ArchiveRoutes:
    """The handlers, one method for each path.

    Their docstrings are in the OpenAPI description. `workers` answer the requests for the archive.
    """

    def __init__(self, routes: Routes, opener: ArchiveOpener) -> None:
        self._routes = routes
        self._opener = opener
        self.workers = Workers("archive", 5, 64, 4, LATE_S)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        rows = [
            ("/api/v1/archive/jobs", self.archived_jobs, stored_models.ArchivedJobs, True),
            ("/api/v1/archive/jobs/{job}", self.archived_job, stored_models.JobInArchive, True),
            ("/api/v1/usage", self.usage, stored_models.UsageAnswer, True),
            ("/api/v1/report", self.jobs_report, stored_models.JobsReport, True),
        ]
        add_routes(app, rows, ARCHIVE)
        add_routes(app, [("/api/v1/report.html", self.jobs_report_page, None, True)], {**ARCHIVE, **PAGE})

    async def archived_jobs(
        self,
        request: Request,
        conditions: ListOptions = LIST,
        columns: str = interface.ARCHIVED_COLUMNS,
        sort: str = interface.ARCHIVED_SORT,
        ascending: bool = interface.ASCENDING,
        offset: int = interface.OFFSET,
        limit: int = interface.LIMIT,
        with_curves: bool = interface.FOOTPRINTS,
    ) -> Response:
        """Return jobs in the archive, running and ended. Ordinary users get their own, or a project they lead."""
        whose = conditions.seen_by(visitor_of(request.scope))
        choose("sort", sort, SORTS)
        if with_curves:
            limit = min(limit, interface.MOST_FOOTPRINTS)
        names = _listed(columns) or (*LISTED, *GRADES)
        for name in names:
            choose("columns", name, tuple(SHOWN))

        def work(archive: JobArchive, only: Optional[str]) -> Mapping[str, Any]:
            page = {"total": 0, "offset": offset, "limit": limit, "items": [], "only": whose}
            if conditions.is_empty():
                return page
            wanted = names if only is None else [name for name in names if name not in HIDDEN]
            if with_curves:
                wanted = [*wanted, FOOTPRINT.name]
            found = graded_jobs(archive, conditions.where(whose), wanted, sort, not ascending, offset, limit)
            items = [{**dict.fromkeys(names), **_own(row, only, whose)} for row in found.rows]
            for row in items if with_curves else ():
                row[FOOTPRINT.name] = curves_of(row[FOOTPRINT.name], is_short=True)
            return {**page, "total": found.total, "items": items}

        return await self._respond(request, work)

    async def archived_job(
        self, request: Request, job: int = interface.JOB, start: Optional[int] = interface.JOB_START
    ) -> Response:
        """Return a job in the archive with its hosts: the latest with this number, or that with this start."""
        projects = sorted(visitor_of(request.scope).projects)

        def work(archive: JobArchive, only: Optional[str]) -> Mapping[str, Any]:
            users = None if only is None else names_of(only)
            own, found = find(archive, job, start, users), find(archive, job, start, users, projects)
            is_own = own is not None and found is not None and own.summary["start"] == found.summary["start"]
            whose = only if is_own else None
            if found is None or start not in (None, found.summary["start"]):
                raise HTTPException(404, NO_JOB.format(job))
            return {
                "job": {**_own(_narrow(found.summary), only, whose), **grades_of(found.summary)},
                "advice": json.loads(found.summary.get("advice") or "null"),
                "footprint": curves_of(found.summary.get("footprint")),
                "hosts": [_own(_narrow(row), only, whose) for row in found.hosts],
                "starts": found.starts,
            }

        return await self._respond(request, work)

    async def usage(self, request: Request, by: str = interface.GROUPED_BY, conditions: ListOptions = LIST) -> Response:
        """Return sums over jobs by groups. Ordinary users get those of their own jobs, or of a project they lead."""
        whose = conditions.seen_by(visitor_of(request.scope))
        words = list(dict.fromkeys(_listed(by)))

        def work(archive: JobArchive, only: Optional[str]) -> Mapping[str, Any]:
            check_groups(words)
            groups = [] if conditions.is_empty() else archive.usage(conditions.where(whose), words)
            if whose is not None and "user" in words:
                groups = _renamed(groups, words.index("user"), whose)
            known, warnings = _factors(only)
            return {
                "by": words,
                "groups": [_usage(one, known) for one in groups],
                "total": _usage(total_of(groups), known),
                "sources": known.sources,
                "currency": known.currency or None,
                "warnings": warnings,
                "only": whose,
            }

        return await self._respond(request, work)

    async def jobs_report(
        self, request: Request, conditions: ListOptions = LIST, limit: int = interface.REPORTED
    ) -> Response:
        """Return the report of several jobs, such as an array. Ordinary users get that of their own jobs."""
        whose = conditions.seen_by(visitor_of(request.scope))

        def work(archive: JobArchive, only: Optional[str]) -> Mapping[str, Any]:
            return document_of_jobs(_several(archive, conditions, whose, limit))

        return await self._respond(request, work)

    async def jobs_report_page(
        self, request: Request, conditions: ListOptions = LIST, limit: int = interface.REPORTED
    ) -> Response:
        """Return the report of several jobs as a page with short curves."""
        whose = conditions.seen_by(visitor_of(request.scope))

        def page(archive: JobArchive, only: Optional[str]) -> Response:
            report = _several(archive, conditions, whose, limit, [FOOTPRINT.name])
            return encoded(jobs_page.html(report), HTML)

        return await self._run(request, page)

    async def _respond(self, request: Request, work: Work) -> Response:
        return await self._run(request, lambda archive, only: answer(work(archive, only)))

    async def _run(self, request: Request, respond: Callable[[JobArchive, Optional[str]], Response]) -> Response:
        def make(only: Optional[str]) -> Response:
            try:
                opened = self._opener()
                if opened is None:
                    raise HTTPException(404, _NO_ARCHIVE)
                with opened as archive:
                    return respond(archive, only)
            except QueryError as err:
                raise HTTPException(400, str(err)) from err

        return await self._routes.run(self.workers, request, make)


def _usage(group: UsageGroup, known: Factors) -> Mapping[str, Any]:
    """Return a group of an answer."""
    of_cpu = {"cpu_ratio": group.cpu_ratio, "cpu_grade": grade_of_usage(group)}
    made = {**of_cpu, "co2_g": known.co2_g(group), "cost": known.cost(group)}
    return {**group._asdict(), "keys": list(group.keys), **made}


def _factors(only: Optional[str]) -> tuple[Factors, list[str]]:
    """Return the factors of CO2 and cost; without readable ones none, and a warning."""
    try:
        return read_factors(None), []
    except ColmetError as err:
        return Factors(), [str(err) if only is None else _NO_FACTORS]


def _several(
    archive: JobArchive, conditions: ListOptions, whose: Optional[str], limit: int, more: Sequence[str] = ()
) -> SeveralJobs:
    """Return the report of the visible jobs that fulfil the conditions."""
    if conditions.is_empty():
        return made_of([])
    found = gather_jobs(archive, conditions.where(whose), limit, more=more)
    return found if whose is None else found._replace(rows=[{**row, "user": whose} for row in found.rows])


def _listed(text: str) -> Sequence[str]:
    return tuple([one for one in text.split(",") if one])


def _own(row: Row, only: Optional[str], whose: Optional[str]) -> Row:
    """Return a row for an ordinary user, as that of `whose`; None for all users."""
    if only is None:
        return row
    shown = {name: value for name, value in row.items() if name not in HIDDEN}
    return {**shown, "user": whose} if whose is not None and "user" in row else shown


def _narrow(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in _LARGE}


def curves_of(packed: Any, is_short: bool = False) -> Optional[Mapping[str, Any]]:
    """Return unpacked curves, with short numbers or whole ones; None for others."""
    found = jobs_page.footprint_of(packed)
    if found is None:
        return None
    curves = {name: short_values(curve.tolist()) if is_short else curve for name, curve in found.curves.items()}
    return {"step_s": found.step_s, **curves}


def _renamed(groups: Sequence[UsageGroup], at: int, user: str) -> list[UsageGroup]:
    """Return groups with one name of their user, where nodes report several."""
    found: dict[tuple[str, ...], UsageGroup] = {}
    for one in groups:
        keys = (*one.keys[:at], user, *one.keys[at + 1 :])
        former = found.get(keys)
        if former is not None:
            sums = {
                name: None if value is None and one.sums[name] is None else (value or 0.0) + (one.sums[name] or 0.0)
                for name, value in former.sums.items()
            }
            one = UsageGroup(keys, former.jobs + one.jobs, sums)
        found[keys] = one._replace(keys=keys)
    return list(found.values())
