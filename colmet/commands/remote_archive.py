"""The job archive, asked through the JSON interface of a collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet.commands.remote import InterfaceClient, InterfaceError
from colmet.common.errors import ColmetError
from colmet.jobs.archive.derived import ANSWERS, LISTED
from colmet.jobs.archive.queries import (
    SUMS,
    ArchivedJob,
    JobArchive,
    JobFilter,
    JobPage,
    QueryError,
    Row,
    UsageGroup,
    check_groups,
    check_page,
)
from colmet.jobs.columns import INTEGER, REAL

PAGE = 1000  # rows of an answer
_KINDS: Mapping[str, tuple[type, ...]] = {INTEGER: (int,), REAL: (int, float)}


class Visitor(NamedTuple):
    """The user of a client, as the interface knows it."""

    user: str | None  # None where the interface is open to all
    is_admin: bool
    projects: frozenset[str]  # that the user leads


class RemoteArchive(JobArchive):
    """The jobs that the user of a client may see."""

    def __init__(self, client: InterfaceClient) -> None:
        self._client = client

    def jobs(
        self,
        where: JobFilter,
        columns: Sequence[str] = tuple(LISTED),
        sort: str = "start",
        descending: bool = True,
        offset: int = 0,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of jobs; see `JobArchive.jobs`."""
        check_page(columns, sort, offset, limit)
        asked = {**parameters_of(where), "columns": ",".join(columns), "sort": sort, "ascending": not descending}
        rows: list[Row] = []
        while True:
            most = max(1, min(PAGE, limit - len(rows)))
            found = self._get("archive/jobs", {**asked, "offset": offset + len(rows), "limit": most})
            try:
                total, items = int(found["total"]), [_row(item, columns) for item in found["items"][:most]]
            except (KeyError, TypeError, ValueError, AttributeError) as err:
                raise self._broken() from err
            rows += items
            if len(items) < most or len(rows) >= limit:
                return JobPage(total, rows[:limit])

    def job(self, job: int, start: int | None = None) -> ArchivedJob | None:
        """Return a job with its hosts; see `JobArchive.job`. The advice is a list, and curves are missing."""
        try:
            found = self._get(f"archive/jobs/{job}", {"start": start})
        except InterfaceError as err:
            if err.status == 404:
                return None
            raise
        try:
            summary = {**_row(found["job"], tuple(ANSWERS)), "advice": found["advice"]}
            return ArchivedJob(summary, [dict(one) for one in found["hosts"]], list(map(int, found["starts"])))
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise self._broken() from err

    def usage(self, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
        """Return sums by groups; see `JobArchive.usage`."""
        check_groups(by)
        found = self._get("usage", {**parameters_of(where), "by": ",".join(by)})
        try:
            return [
                UsageGroup(
                    tuple(map(str, one["keys"])),
                    int(one["jobs"]),
                    {name: _number(one["sums"].get(name)) for name in SUMS},
                )
                for one in found["groups"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise self._broken() from err

    def visitor(self) -> Visitor:
        """Return whom the interface takes the user for."""
        found = self._get("whoami", {})
        user, is_admin, projects = found.get("user"), found.get("admin"), found.get("projects", [])
        if not isinstance(user, (str, type(None))) or not isinstance(is_admin, bool) or not isinstance(projects, list):
            raise self._broken()
        return Visitor(user, is_admin, frozenset(map(str, projects)))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _get(self, path: str, asked: Mapping[str, object]) -> dict[str, Any]:
        return self._client.get(path, {name: value for name, value in asked.items() if value not in ("", None)})

    def _broken(self) -> ColmetError:
        return ColmetError(f"{self._client.url}: the answer has not the described form; is it of another version?")


def parameters_of(where: JobFilter) -> dict[str, object]:
    """Return the conditions as parameters of a request."""
    where.check()
    for some in (where.users, where.projects, where.queues, where.hosts):
        if any("," in one for one in some):
            raise QueryError("a name with a comma cannot be asked for at the interface")
    return {
        "job": ",".join(map(str, where.jobs)),
        "user": ",".join(where.users),
        "project": ",".join(where.projects),
        "queue": ",".join(where.queues),
        "state": ",".join(where.states),
        "host": ",".join(where.hosts),
        "array": where.array,
        "name": where.name,
        "since": where.since,
        "until": where.until,
        "efficiency_below": where.efficiency_below,
        "rule": where.rule,
    }


def _row(item: Mapping[str, Any], columns: Sequence[str]) -> Row:
    """Return the values of some columns; a value of another type is an error."""
    row: Row = {}
    for name in columns:
        value = item.get(name)
        kinds = _KINDS.get(ANSWERS[name].kind, (str,))
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise TypeError(name)
        row[name] = value
    return row


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
