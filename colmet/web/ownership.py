"""Determine the user of the rows of a job, from the reports of its hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from colmet.common.errors import ColmetError
from colmet.web.recent_cache import JobStay, RecentCache, RecentJob
from colmet.web.store import RowOwners, StoreReader

GRACE_S = 120.0  # after our start: jobs appearing in this time may have begun before


def earliest(own: Mapping[str, float | None]) -> float | None:
    """Return the start of a user's rows over all hosts; None for all rows."""
    begins = [at for at in own.values() if at is not None]
    return min(begins) if begins and len(begins) == len(own) else None


class Ownership:
    """A map from rows to users.

    Each host names the user of its own rows, in the recent cache or in the store: no other host can give a job to a
    user or remove it. On one host the rows of a job's number are, with `JobStay.user` and `is_disputed`,

        unnamed --- a row names a user ---> named --- a row names another user ---> disputed

    and disputed rows have no user. A job as a whole has a user if all its hosts name the same one, else none. Stored
    rows count, too, unless the recent cache has seen all of the job on a host: earlier rows of the same number may
    belong to another job.
    """

    def __init__(self, recent: RecentCache, store: StoreReader | None, name_of: Callable[[str], str]) -> None:
        self._recent = recent
        self._store = store
        self._name_of = name_of

    def owner(self, job: int, otherwise: str = "") -> str:
        """Return the user of a job in the recent cache; `otherwise` if it names none, "" if hosts differ."""
        known = self._recent.job(job)
        if known is not None and known.is_disputed:
            return ""
        return self._name_of((known.user if known is not None else "") or otherwise)

    def owner_on(self, job: int, host: str, otherwise: str = "") -> str:
        """Return the user of the rows of a job on a host, as reported by this host; "" for disputed rows."""
        known = self._recent.job(job)
        stay = None if known is None else known.hosts.get(host)
        if stay is None:
            return self._name_of(otherwise)
        return "" if stay.is_disputed else self._name_of(stay.user or otherwise)

    def is_users(self, known: RecentJob | None, user: str) -> bool:
        """Return whether a host reports a job as this user's."""
        if known is None:
            return False
        if not known.is_disputed:
            return bool(known.user) and self._name_of(known.user) == user
        return any(self._is_stay_of(stay, user) for stay in self._recent.hosts_of(known).values())

    def hosts(self, known: RecentJob | None, user: str | None) -> list[str]:
        """Return the hosts of a job reporting it as this user's; all hosts if `user` is None."""
        if known is None:
            return []
        stays = self._recent.hosts_of(known)
        return [host for host, stay in stays.items() if user is None or self._is_stay_of(stay, user)]

    def own(self, job: int, user: str) -> Mapping[str, float | None]:
        """Return hosts with rows of a user's job, and the start of these rows (None for all). May wait for a store.

        Raises:
            ColmetError: the store cannot be read, and the recent cache has no rows of this user.
        """
        known = self._recent.job(job)
        stays = {} if known is None else self._recent.hosts_of(known)
        found: dict[str, float | None] = {
            host: stay.since for host, stay in stays.items() if self._is_stay_of(stay, user)
        }
        if self._store is None or (len(found) == len(stays) and stays and self.saw_all(stays.values())):
            return found
        try:
            stored = self._store.owners(job) or {}
        except ColmetError:
            if found:
                return found
            raise
        for host, owners in stored.items():
            if {self._name_of(one) for one in owners.users} == {user} and self._goes_on(stays.get(host), user, owners):
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
        stored = None if self._store is None else self._store.owners(job)
        names = {self._name_of(one) for owners in (stored or {}).values() for one in owners.users}
        return names.pop() if len(names) == 1 else ""

    def begins(
        self, job: int, known: RecentJob | None, user: str, own: Mapping[str, float | None] | None
    ) -> float | None:
        """Return the start of the stored rows of the current job of a number; None for all rows."""
        if own is None:
            if known is None:
                return None
            stays = self._recent.hosts_of(known).values()
            own = self.own(job, user) if user else {}
            if not user and self.saw_all(stays):
                return min([stay.since for stay in stays], default=None)
        return earliest(own)

    def saw_all(self, stays: Iterable[JobStay]) -> bool:
        """Return whether a job began on these hosts after the start of this process, without a long pause since."""
        return all(stay.is_whole and stay.since > self._recent.began + GRACE_S for stay in stays)

    def _is_stay_of(self, stay: JobStay, user: str) -> bool:
        return bool(stay.user) and not stay.is_disputed and self._name_of(stay.user) == user
