"""Determine the user of the rows of a job, from the reports of its hosts, and the latest values with their users."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from colmet.common.errors import ColmetError
from colmet.common.live.summary import DEVICE_KEYS, JobUsage, measure_devices, measure_jobs, measure_nodes
from colmet.stored.series import NODE
from colmet.web.recent_cache import JobStay, RecentCache, RecentJob
from colmet.web.store import RowOwners, StoreReader

GRACE_S = 120.0  # after our start: jobs appearing in this time may have begun before


class OwnHosts(dict[str, "float | None"]):
    """Hosts with rows of a user's job, and the start of these rows (None for all)."""

    unread: ColmetError | None = None  # why earlier rows may be missing


def earliest(own: Mapping[str, float | None]) -> float | None:
    """Return the start of a user's rows over all hosts; None for all rows."""
    begins = [at for at in own.values() if at is not None]
    return min(begins) if begins and len(begins) == len(own) else None


class Snapshot(NamedTuple):
    """The latest values."""

    taken: float  # time by the monotonic clock
    time: float  # seconds since 1970
    jobs: JobUsage  # resource usage of each job on each node, with the user of the node's rows
    rows: Mapping[int, dict[str, Any]]  # rows of running jobs with values, by job number
    running: frozenset[int]  # all running jobs
    on: Mapping[str, Mapping[int, str]]  # the jobs on each node, with their users as reported by the node
    nodes: Sequence[dict[str, Any]]  # one row for each node

    def of_user(self, user: str) -> Snapshot:
        """Return the values of the jobs of one user, from the rows of this user alone."""
        jobs = _picked(self.jobs, [n for n, owner in enumerate(self.jobs.user) if owner == user])
        mine = {host: {job: user for job, owner in here.items() if owner == user} for host, here in self.on.items()}
        return self._replace(jobs=jobs, rows=_by_job(jobs), **_running({host: on for host, on in mine.items() if on}))


def _picked(jobs: JobUsage, keep: Sequence[int]) -> JobUsage:
    at = np.array(keep, np.int64)
    values = {key: column[at] for key, column in jobs.values.items()}
    return jobs._replace(host=jobs.host[at], job=jobs.job[at], user=[jobs.user[n] for n in keep], values=values)


def _by_job(jobs: JobUsage) -> dict[int, dict[str, Any]]:
    return {row["job"]: row for row in jobs.by_job(np.arange(len(jobs.job)))}


def _running(on: Mapping[str, Mapping[int, str]]) -> dict[str, Any]:
    return {"on": on, "running": frozenset([job for here in on.values() for job in here])}


def names_of(user: str) -> Sequence[str]:
    """Return the names of a user in the archive: nodes that do not know the name report the number."""
    try:
        number = pwd.getpwnam(user).pw_uid
        return (user, str(number)) if pwd.getpwuid(number).pw_name == user else (user,)
    except (KeyError, ValueError):
        return (user,)


@dataclass(eq=False)
class Ownership:
    """A map from rows to users.

    Each host names the user of its own rows, in the recent cache or in the store: no other host can give a job to a
    user or remove it. On one host the rows of a job's number are, with `JobStay.user` and `is_disputed`,

        unnamed --- a row names a user ---> named --- a row names another user ---> disputed

    and disputed rows have no user. A job as a whole has a user if all its hosts name the same one, else none. Stored
    rows count, too, unless the recent cache has seen all of the job on a host: earlier rows of the same number may
    belong to another job.
    """

    recent: RecentCache
    store: StoreReader | None
    name_of: Callable[[str], str]

    def look(self, taken: float, now: float) -> Snapshot:
        """Return the latest values, from the recent cache."""
        look = self.recent.look()
        jobs = measure_jobs(look.hosts)
        jobs = _picked(jobs, np.flatnonzero(jobs.job != NODE).tolist())
        rows = _by_job(jobs)
        for job, row in rows.items():
            row["user"] = self.owner(job, row["user"])
        on: dict[str, Mapping[int, str]] = {}
        for n, (host, kept) in enumerate(look.hosts):
            if host not in look.silent:
                here = kept.jobs if kept.jobs is not None else jobs.job[jobs.host == n].tolist()
                on[host] = {job: self.owner_on(job, host) for job in here if job != NODE}
        users = [
            self.owner_on(job, jobs.names[host], user)
            for job, host, user in zip(jobs.job.tolist(), jobs.host.tolist(), jobs.user)
        ]
        nodes = measure_nodes(look.hosts, look.taken, int(now * 1e9), look.heard)
        devices = [*measure_devices(look.hosts), *[dict.fromkeys(DEVICE_KEYS)] * len(nodes)]
        nodes = [{**row, **more} for row, more in zip(nodes, devices)]
        return Snapshot(taken, now, jobs._replace(user=users), rows, nodes=nodes, **_running(on))

    def owner(self, job: int, otherwise: str = "") -> str:
        """Return the user of a job in the recent cache; `otherwise` if it names none, "" if hosts differ."""
        known = self.recent.job(job)
        if known is not None and known.is_disputed:
            return ""
        return self.name_of((known.user if known is not None else "") or otherwise)

    def owner_on(self, job: int, host: str, otherwise: str = "") -> str:
        """Return the user of the rows of a job on a host, as reported by this host; "" for disputed rows."""
        known = self.recent.job(job)
        stay = None if known is None else known.hosts.get(host)
        if stay is None:
            return self.name_of(otherwise)
        return "" if stay.is_disputed else self.name_of(stay.user or otherwise)

    def is_users(self, known: RecentJob | None, user: str) -> bool:
        """Return whether a host reports a job as this user's."""
        if known is None:
            return False
        if not known.is_disputed:
            return bool(known.user) and self.name_of(known.user) == user
        return any(self._is_stay_of(stay, user) for stay in self.recent.hosts_of(known).values())

    def hosts(self, known: RecentJob | None, user: str | None) -> list[str]:
        """Return the hosts of a job reporting it as this user's; all hosts if `user` is None."""
        if known is None:
            return []
        stays = self.recent.hosts_of(known)
        return [host for host, stay in stays.items() if user is None or self._is_stay_of(stay, user)]

    def own(self, job: int, user: str) -> Mapping[str, float | None]:
        """Return hosts with rows of a user's job, and the start of these rows (None for all). May wait for a store.

        ColmetError if the store cannot be read, and the recent cache has no rows of this user.
        """
        known = self.recent.job(job)
        stays = {} if known is None else self.recent.hosts_of(known)
        found = OwnHosts({host: stay.since for host, stay in stays.items() if self._is_stay_of(stay, user)})
        if self.store is None or (len(found) == len(stays) and stays and self.saw_all(stays.values())):
            return found
        try:
            stored = self.store.owners(job) or {}
        except ColmetError as err:
            if found:
                found.unread = err
                return found
            raise
        for host, owners in stored.items():
            if {self.name_of(one) for one in owners.users} == {user} and self._goes_on(stays.get(host), user, owners):
                found[host] = None
        return found

    def _goes_on(self, stay: JobStay | None, user: str, owners: RowOwners) -> bool:
        """Return whether a user's stored rows of a host belong to the job in the recent cache there, if any."""
        if stay is None:
            return True
        if self.saw_all([stay]):
            return False  # the stored rows belong to a former job of this number
        if self._is_stay_of(stay, user):
            return True
        # the job continues, and its node has not named the user since our start
        return not stay.user and not stay.is_disputed and owners.last >= stay.since - GRACE_S

    def stored_owner(self, job: int) -> str:
        """Return the user of the stored rows of a job; "" if no row names one, or rows differ."""
        stored = None if self.store is None else self.store.owners(job)
        names = {self.name_of(one) for owners in (stored or {}).values() for one in owners.users}
        return names.pop() if len(names) == 1 else ""

    def begins(
        self, job: int, known: RecentJob | None, user: str, own: Mapping[str, float | None] | None
    ) -> float | None:
        """Return the start of the stored rows of the current job of a number; None for all rows."""
        if own is None:
            if known is None:
                return None
            stays = self.recent.hosts_of(known).values()
            own = self.own(job, user) if user else {}
            if not user and self.saw_all(stays):
                return min([stay.since for stay in stays], default=None)
        return earliest(own)

    def saw_all(self, stays: Iterable[JobStay]) -> bool:
        """Return whether a job began on these hosts after the start of this process, without a long pause since."""
        return all(stay.is_whole and stay.since > self.recent.began + GRACE_S for stay in stays)

    def _is_stay_of(self, stay: JobStay, user: str) -> bool:
        return bool(stay.user) and not stay.is_disputed and self.name_of(stay.user) == user
