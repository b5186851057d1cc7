"""The summary of a whole job, from those of its hosts.

A node speaks for its own rows alone: no other node can give a job to a user or remove it. So hosts that name different
users are of different jobs with one number, and hosts that name nobody are apart from those that name somebody. What
the batch system knows of a job comes first: its hosts, or without a list of these the hosts that name its owner or
nobody, are one job of its owner.
"""

from __future__ import annotations

import json
import math
import pwd
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from colmet.common.measures import ALL, MAX, SUM
from colmet.jobs import columns, footprint
from colmet.jobs.advice import advise, withheld
from colmet.jobs.columns import JobColumn, Summary, Value, whole_of
from colmet.jobs.footprint import Footprint
from colmet.jobs.summary_report import footprints_of, report_of

SummaryT = TypeVar("SummaryT", bound=Mapping[str, Any])
NEAR_S = 120  # between the times of a host and those of the batch system: clocks differ
APART_S = 600  # hosts that begin so long after the end of all others are of another run


def runs_of(hosts: Iterable[Summary], record_of: Callable[[Summary], int] = lambda _: 0) -> list[list[Summary]]:
    """Return the summaries of one job id by runs: one job, or several with one id, one after the other.

    On a host each run has one summary. `record_of` returns the start, by the batch system, of the run that a host is
    of: hosts of another one that begin after the end of all others are of another run, as after a requeue.
    """
    runs: list[list[Summary]] = []
    ends: dict[object, int] = {}
    for host in sorted(hosts, key=lambda one: (whole_of(one.get("start")), str(one["host"]))):
        start, last = whole_of(host.get("start")), whole_of(host.get("last"))
        end = max(ends.values(), default=0)
        is_next = bool(runs) and start > end and record_of(host) != record_of(runs[-1][0])
        if not runs or host["host"] in ends or start > end + APART_S or is_next:
            runs.append([])
            ends = {}
        runs[-1].append(host)
        ends[host["host"]] = last
    return runs


def keyed_runs(hosts: Sequence[Summary], records: Sequence[Summary]) -> dict[int, list[Summary]]:
    """Return the summaries of hosts by jobs with one number, each job by a start of its own.

    Args:
        hosts: summaries of all hosts with rows of this number.
        records: what batch systems know of these jobs: `owner`, `batch_hosts`, `started`, `ended`, `state` and `last`.
    """
    found: dict[int, list[Summary]] = {}
    for run in owned_runs(hosts, records):
        start = min([whole_of(one.get("start")) for one in run])
        while start in found:  # of another user's job with this number; not later, as hosts are looked up from it on
            start -= 1
        found[start] = run
    return found


def moves_of(before: Iterable[int], runs: Mapping[int, Sequence[Summary]]) -> list[tuple[int, int]]:
    """Return which starts of written summaries are replaced by which ones: those of hosts that are of another job."""
    hosts = [host for run in runs.values() for host in run]
    users = {named_user(host.get("user")) for host in hosts}
    begins = {whole_of(host.get("start")) - early for host in hosts for early in range(len(users) + 1)}
    gone = [old for old in before if old not in runs and old in begins]
    return [(old, min(runs, key=lambda start: (abs(start - old), start))) for old in gone]


def owned_runs(hosts: Sequence[Summary], records: Sequence[Summary]) -> list[list[Summary]]:
    """Return the summaries of hosts by runs of one user; see `keyed_runs`."""
    listed = [_listed(record, hosts) for record in records]
    by_owner: dict[tuple[bool, str], list[Summary]] = {}
    for host in hosts:
        by_owner.setdefault(_owner(host, records, listed), []).append(host)

    def record_of(host: Summary) -> int:
        start = whole_of(host.get("start"))
        begins = [
            whole_of(record.get("started"))
            for record, names in zip(records, listed)
            if _overlap(host, record) and (not names or _short(host) in names)
        ]
        return min(begins, key=lambda one: abs(one - start), default=0)

    return [run for owner in sorted(by_owner) for run in runs_of(by_owner[owner], record_of)]


def hosts_of_job(job: Mapping[str, Any], hosts: Sequence[SummaryT]) -> list[SummaryT]:
    """Return the hosts of a whole job, of those with rows of its number at its time; see `owned_runs`.

    All, if the batch system knows of no user that they name: they have no other job.
    """
    records = [job] if job.get("started") is not None and job.get("owner") else []
    listed = [_listed(job, hosts) for job in records]
    user = named_user(job.get("owner") or job.get("user"))
    own = [host for host in hosts if _owner(host, records, listed) == (not records, user)]
    return own or list(hosts)


def _owner(host: Summary, records: Sequence[Summary], listed: Sequence[Collection[str]]) -> tuple[bool, str]:
    """Return whether only the host names its user, and the user; "" for none."""
    user = named_user(host.get("user"))
    for record, names in zip(records, listed):
        owner = named_user(record.get("owner"))
        if owner and _overlap(host, record) and (_short(host) in names if names else user in ("", owner)):
            return False, owner
    return True, user


def _overlap(host: Summary, record: Summary) -> bool:
    started, ended = whole_of(record.get("started")), record.get("ended")
    if ended is None and record.get("state") != columns.RUNNING:
        ended = record.get("last") or started
    is_before_end = ended is None or whole_of(host.get("start")) <= whole_of(ended) + NEAR_S
    return whole_of(host.get("last")) >= started - NEAR_S and is_before_end


def _listed(record: Summary, hosts: Sequence[Summary]) -> Collection[str]:
    """Return the hosts of a record by the batch system; none if it names no host as the nodes name themselves."""
    text = record.get("batch_hosts")
    names = {name.partition(".")[0] for name in text.split(",")} if isinstance(text, str) else set()
    return names if any(_short(host) in names for host in hosts) else ()


def _short(host: Summary) -> str:
    return str(host["host"]).partition(".")[0]


@lru_cache(maxsize=4096)
def named_user(user: Value) -> str:
    """Return the name of a user; nodes that do not know it report the number."""
    text = "" if user is None else str(user)
    if text.isascii() and text.isdigit():
        try:
            return pwd.getpwuid(int(text)).pw_name
        except (KeyError, OverflowError):
            return text
    return text


def job_summary(run: Sequence[Summary]) -> dict[str, Value]:
    """Return the summary of a job from those of all its hosts."""
    hosts = sorted(run, key=lambda one: str(one["host"]))
    found = job_figures(hosts)
    if any(one.get("cpu_s") is None for one in hosts):  # a part would be taken for the whole, see `report_of`
        found.update(dict.fromkeys(("cpu_s", "cpu_ratio", "wasted_core_s")))
    curves = footprints_of(hosts)
    found[columns.FOOTPRINT.name] = _footprint(hosts, curves)
    found[columns.ADVICE.name] = advice_of(found, hosts, curves)
    return found


def job_figures(hosts: Sequence[Summary]) -> dict[str, Value]:
    """Return the figures of a job from those of all its hosts."""
    start = min(whole_of(one.get("start")) for one in hosts)
    found: dict[str, Value] = {"job": hosts[0]["job"], "start": start}
    for column in columns.MEASURED:
        found[column.name] = _folded(column, [one.get(column.name) for one in hosts])
    found["wall_s"] = float(max(whole_of(one.get("last")) for one in hosts) - start)
    used, held = found["cpu_s"], found["core_s"]
    if isinstance(used, (int, float)) and isinstance(held, (int, float)):
        found["cpu_ratio"] = min(1.0, used / held) if held else None
        found["wasted_core_s"] = max(0.0, held - used)
    else:
        found["cpu_ratio"] = found["wasted_core_s"] = None
    sources = {part for one in hosts for part in str(one.get("energy_source") or "").split(" and ") if part}
    found["energy_source"] = " and ".join(sorted(sources)) or None
    return found


def _footprint(hosts: Sequence[Summary], curves: Sequence[tuple[Summary, Footprint]]) -> Value:
    """Return the curves of all hosts together."""
    if len(hosts) == 1:
        return hosts[0].get(columns.FOOTPRINT.name)
    summed = footprint.summed([(whole_of(one.get("start")), found) for one, found in curves])
    return None if summed is None else footprint.encode(summed)


def _folded(column: JobColumn, values: Sequence[Value]) -> Value:
    """Return the value of a job from those of its hosts."""
    known: list[Any] = [value for value in values if value is not None]
    how = column.hosts
    if how == columns.OWN or not known or (how == ALL and len(known) < len(values)):
        return None
    if how in (SUM, ALL):
        return sum(known) if column.kind == columns.INTEGER else math.fsum(known)
    if how == columns.SAME:
        names = {named_user(value) for value in known}
        return names.pop() if len(names) == 1 else None
    found: Value = known[0] if how == columns.FIRST else max(known) if how == MAX else min(known)
    return found


def advice_of(
    job: Summary, hosts: Sequence[Summary], curves: Sequence[tuple[Summary, Footprint]] | None = None
) -> str | None:
    """Return the advice on a job as JSON; None if there are too few samples. For `curves` see `report_of`."""
    report = report_of(job, hosts, curves)
    if withheld(report):
        return None
    return json.dumps([{"rule": one.rule, "text": one.text} for one in advise(report)], ensure_ascii=False)
