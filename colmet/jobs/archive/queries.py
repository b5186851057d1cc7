"""The questions to the job archive, whatever keeps it: lists of jobs, one job, and usage with its CO2 and cost."""

from __future__ import annotations

import calendar
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.config.configuration import file_text, parse
from colmet.common.errors import ColmetError, ConfigError
from colmet.jobs.archive.derived import ANSWERS, LISTED
from colmet.jobs.columns import REAL, STATES, JobColumn

MAX_ROWS = 10_000  # of a page
MAX_TEXT = 255  # characters of a text to search for
MAX_VALUES = 1000  # of one condition
MAX_GROUPS = 10_000  # of the answer to one question of usage
MAX_SPANS = 1200  # months, weeks or days of one question

SORTS = tuple(LISTED)
SPANS = ("month", "week", "day")  # in UTC; weeks begin on Monday
GROUPS = ("user", "project", "queue", "state", "system", "name", "host", *SPANS)
# Sums of usage, by name: the summed column of a job and of a host, its unit and a sentence.
SUMS = {
    "core_s": JobColumn("core_s", REAL, "s", "Allocated CPU time."),
    "cpu_s": JobColumn("cpu_s", REAL, "s", "CPU time used."),
    "wasted_core_s": JobColumn("wasted_core_s", REAL, "s", "Allocated CPU time less the CPU time used."),
    "gpu_s": JobColumn("gpu_s", REAL, "s", "GPUs held times duration."),
    "gpu_busy_s": JobColumn("gpu_busy_s", REAL, "s", "The same, times their use."),
    "memory_byte_s": JobColumn("memory_byte_s", REAL, "B s", "Memory used times duration."),
    "energy_joules": JobColumn("energy_joules", REAL, "J", "Shares of the nodes' energy, and the GPUs'."),
}

_TASK = re.compile(r"([0-9]{1,18})[_.]([0-9]{1,9})")  # of an array: 17_3 by Slurm, 17.3 by Grid Engine
Row = dict[str, Any]  # values by name of `ANSWERS`; None for a missing one


class QueryError(ColmetError):
    """A question that cannot be answered as it is; the message suggests a remedy."""


class WrongQuestion(QueryError, ConfigError):
    """A question with a word that no archive knows."""


class Deadline:
    """The time by which an archive has to have answered: seconds from now, infinite for none."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s

    def is_over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() > self._end

    def check(self) -> None:
        """Raise QueryError if the time is over."""
        if self.is_over():
            raise QueryError(
                f"the answer takes longer than {self._limit_s:g} s; ask for a shorter interval, or fewer jobs or groups"
            )


def check_count(groups: int) -> None:
    """Raise QueryError for too many groups."""
    if groups > MAX_GROUPS:
        raise QueryError(
            f"usage has more than {MAX_GROUPS} groups; ask for a shorter interval, or fewer or larger groups"
        )


class JobFilter(NamedTuple):
    """Conditions on jobs: all hold. An empty condition holds for every job."""

    users: Sequence[str] = ()
    projects: Sequence[str] = ()
    queues: Sequence[str] = ()
    states: Sequence[str] = ()  # of `STATES`
    hosts: Sequence[str] = ()  # it ran on one of them
    jobs: Sequence[int] = ()
    array: str = ""  # id of its array
    task: str = ""  # of an array, named as its batch system does: 17_3
    name: str = ""  # a part of its name, in any case
    since: float | None = None  # seconds since 1970: it ended then or later, or runs
    until: float | None = None  # it started before
    efficiency_below: float | None = None  # used share of the allocated CPU time
    rule: str = ""  # a rule of advice that applies
    only_own_hosts: bool = False  # usage by host is without hosts that name none of `users`

    def check(self) -> None:
        """Raise QueryError for an unusable condition."""
        for state in self.states:
            if state not in STATES:
                raise WrongQuestion(f"state {state!r:.100} is none of {', '.join(STATES)}{did_you_mean(state, STATES)}")
        texts = (*self.users, *self.projects, *self.queues, *self.hosts, self.array, self.task, self.name, self.rule)
        if any(len(text) > MAX_TEXT for text in texts):
            raise WrongQuestion(f"a text to search for has more than {MAX_TEXT} characters")
        if any(len(some) > MAX_VALUES for some in (self.users, self.projects, self.queues, self.hosts, self.jobs)):
            raise QueryError(f"a condition has more than {MAX_VALUES} values")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise WrongQuestion("the start of the interval is later than its end")


def task_parts(text: str) -> tuple[str, int] | None:
    """Return the id of the array and the index of a task, named as its batch system does; None for another text."""
    match = _TASK.fullmatch(text)
    return None if match is None else (match[1], int(match[2]))


class JobPage(NamedTuple):
    """A part of a list of jobs."""

    total: int  # jobs in the whole list
    rows: list[Row]


class ArchivedJob(NamedTuple):
    """One job, with its hosts."""

    summary: Row  # of the whole job, with derived and large values
    hosts: list[Row]  # by host, with large values
    starts: list[int]  # of all jobs with this number, the latest first


class UsageGroup(NamedTuple):
    """Sums over the jobs of one group; None where no job has a value."""

    keys: tuple[str, ...]  # of the group, one for each word of the question
    jobs: int
    sums: dict[str, float | None]  # by name of `SUMS`

    @property
    def cpu_ratio(self) -> float | None:
        """Return the used share of the allocated CPU time, without jobs of which one of both is unknown."""
        held, used, wasted = [self.sums[name] for name in ("core_s", "cpu_s", "wasted_core_s")]
        if not held or wasted is None:
            return None
        held = min(held, wasted + (used or 0.0))  # the waste of a job is missing with its CPU time
        return max(0.0, 1 - wasted / held) if held else None


class JobArchive(ABC):
    """A job archive that is open for questions. Also a context manager that closes it.

    Every method raises `QueryError` for an unusable question, and another `ColmetError` if the archive cannot be read.
    """

    def jobs(
        self,
        where: JobFilter,
        columns: Sequence[str] = tuple(LISTED),
        sort: str = "start",
        descending: bool = True,
        offset: int = 0,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of the jobs that fulfil the conditions.

        Args:
            where: the conditions.
            columns: names of `ANSWERS`.
            sort: one of `SORTS`; missing values come last, ties by start and job.
            descending: whether the largest comes first.
            offset: number of skipped jobs.
            limit: most jobs of the page, at most `MAX_ROWS`.
        """
        where.check()
        check_page(columns, sort, offset, limit)
        return self._page(where, list(dict.fromkeys(columns)), (sort, descending), offset, limit)

    @abstractmethod
    def _page(self, where: JobFilter, wanted: list[str], order: tuple[str, bool], offset: int, limit: int) -> JobPage:
        """Return a page with the `wanted` columns, in an `order`: one of `SORTS`, and whether the largest is first."""

    @abstractmethod
    def job(self, job: int, start: int | None = None) -> ArchivedJob | None:
        """Return a job with its hosts; of several with this number that with this start, else the latest."""

    def usage(self, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
        """Return sums of the jobs that fulfil the conditions, by one or several of `GROUPS`, largest first.

        A job counts with the share of its wall time within the interval of the conditions, and within each month, week
        or day: so the sums of months add up to that of the year.
        """
        where.check()
        check_groups(by)
        return self._usage(where, by)

    @abstractmethod
    def _usage(self, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
        """Return the sums of `usage`."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; idempotent."""

    def __enter__(self) -> JobArchive:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def check_page(columns: Sequence[str], sort: str, offset: int, limit: int) -> None:
    """Raise QueryError for unknown columns, an unknown order, or a page that is too large."""
    for name in columns:
        if name not in ANSWERS:
            raise WrongQuestion(f"column {name!r:.100} is not known{did_you_mean(name, ANSWERS)}")
    if sort not in LISTED:
        known = ", ".join(LISTED)
        raise WrongQuestion(f"jobs are not sorted by {sort!r:.100}{did_you_mean(sort, LISTED)}; there are {known}")
    if not 0 <= limit <= MAX_ROWS or not 0 <= offset < 1 << 62:
        raise QueryError(f"a page has at most {MAX_ROWS} jobs, and begins at 0 or later")


def check_groups(by: Sequence[str]) -> None:
    """Raise QueryError for unknown or unsuitable groups."""
    if not by or len(set(by)) < len(by) or len(by) > 3:
        raise WrongQuestion("usage is by one to three different words")
    for word in by:
        if word not in GROUPS:
            raise WrongQuestion(
                f"usage is not by {word!r:.100}; there are {', '.join(GROUPS)}{did_you_mean(word, GROUPS)}"
            )
    if len([word for word in by if word in SPANS]) > 1:
        raise WrongQuestion(f"usage is by one of {', '.join(SPANS)}")


class Span(NamedTuple):
    """A month, week or day."""

    name: str  # 2026-11, 2026-W48, 2026-11-24
    since: int  # seconds since 1970
    until: int  # its end


def spans(kind: str, first: float, last: float) -> list[Span]:
    """Return the months, weeks or days in UTC from that of `first` to that of `last`; QueryError for too many."""
    found: list[Span] = []
    at = _start_of(kind, int(first))
    while at <= last:
        if len(found) >= MAX_SPANS:
            raise QueryError(f"the interval has more than {MAX_SPANS} parts of a {kind}; ask for a shorter one")
        following = _start_of(kind, at + {"month": 32, "week": 7, "day": 1}[kind] * 86400)
        found.append(Span(time.strftime(_NAMES[kind], time.gmtime(at)), at, following))
        at = following
    return found


_NAMES = {"month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d"}


def _start_of(kind: str, moment: int) -> int:
    day = moment // 86400 * 86400
    when = time.gmtime(day)
    if kind == "month":
        return calendar.timegm((when.tm_year, when.tm_mon, 1, 0, 0, 0))
    return day - when.tm_wday * 86400 if kind == "week" else day


def by_size(groups: Iterable[UsageGroup]) -> list[UsageGroup]:
    """Return groups by allocated CPU time, largest first, then by jobs and keys."""
    return sorted(groups, key=lambda one: (-(one.sums["core_s"] or 0.0), -one.jobs, one.keys))


def total_of(groups: Sequence[UsageGroup]) -> UsageGroup:
    """Return the sums over groups; jobs of several months or hosts count in each."""
    sums: dict[str, float | None] = {}
    for name in SUMS:
        values = [value for group in groups for value in [group.sums[name]] if value is not None]
        sums[name] = sum(values) if values else None
    return UsageGroup((), sum([group.jobs for group in groups]), sums)


FACTORS_PATH = "/etc/colmet/usage.toml"
JOULES_PER_KWH, HOUR_S = 3.6e6, 3600.0


class Factors(NamedTuple):
    """The factors of a site; None for an unknown one."""

    co2_per_kwh: float | None = None  # grams
    co2_source: str = ""
    price_per_kwh: float | None = None
    price_per_core_hour: float | None = None  # of allocated cores
    price_source: str = ""
    currency: str = ""

    @property
    def sources(self) -> list[str]:
        """Return a line for each factor, with its source."""
        found = []
        if self.co2_per_kwh is not None:
            found.append(f"CO2: {self.co2_per_kwh:g} g per kWh ({self.co2_source})")
        parts = ((self.price_per_kwh, "kWh"), (self.price_per_core_hour, "allocated core hour"))
        prices = [f"{price:g} {self.currency} per {of}" for price, of in parts if price is not None]
        if prices:
            found.append(f"Cost: {', '.join(prices)} ({self.price_source})")
        return found

    def co2_g(self, group: UsageGroup) -> float | None:
        """Return grams of CO2; None without the factor or the energy."""
        joules = group.sums["energy_joules"]
        return None if joules is None or self.co2_per_kwh is None else joules / JOULES_PER_KWH * self.co2_per_kwh

    def cost(self, group: UsageGroup) -> float | None:
        """Return the cost of energy and core hours; None without a factor, or where one of them is missing."""
        parts = (
            (self.price_per_kwh, group.sums["energy_joules"], JOULES_PER_KWH),
            (self.price_per_core_hour, group.sums["core_s"], HOUR_S),
        )
        known = [
            None if amount is None else price * amount / unit for price, amount, unit in parts if price is not None
        ]
        return None if not known or None in known else sum([one for one in known if one is not None])


def _add_factors(parser: cli.Options) -> None:
    """Declare the factors."""
    parser.add_argument("--co2-per-kwh", metavar="GRAMS", type=cli.positive_number, help="CO2 of a kWh, in grams")
    parser.add_argument("--co2-source", metavar="TEXT", default="", help="where this number is from")
    parser.add_argument("--price-per-kwh", metavar="PRICE", type=cli.positive_number, help="price of a kWh")
    parser.add_argument(
        "--price-per-core-hour", metavar="PRICE", type=cli.positive_number, help="price of an hour of an allocated core"
    )
    parser.add_argument("--price-source", metavar="TEXT", default="", help="where these prices are from")
    parser.add_argument("--currency", metavar="NAME", default="", help="currency of the prices, such as EUR")


def read_factors(path: str | None) -> Factors:
    """Return the factors of a file in TOML, by default `FACTORS_PATH` if there is one; none without a file.

    ConfigError if the file cannot be read or used, or a factor has no source.
    """
    if path is None and not os.path.exists(FACTORS_PATH):
        return Factors()
    path = path or FACTORS_PATH
    parser = cli.Parser(prog="colmet usage")
    _add_factors(parser)
    found = Factors(**parse(file_text(path), path, parser))
    for values, source in (
        ((found.co2_per_kwh,), "co2-source"),
        ((found.price_per_kwh, found.price_per_core_hour), "price-source"),
    ):
        if any(value is not None for value in values) and not getattr(found, source.replace("-", "_")):
            raise ConfigError(f"{path}: {source} is missing: readers need to know where the number is from")
    return found
