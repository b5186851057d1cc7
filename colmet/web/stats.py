"""What the JSON interface counts of itself: told by /api/v1/status to administrators."""

from __future__ import annotations

import threading
import time

KEYS = (
    *("requests_2xx", "requests_3xx", "requests_4xx", "requests_5xx"),
    "defects",  # answers that failed by a fault of this program
    "malformed",  # what is no HTTP, or more of it than is taken
    "refused_connections",  # beyond the bounds
    "slow_connections",  # ended because nothing, or not enough, came or was taken
    "broken_connections",  # that failed in another way, such as a handshake that is none
    "too_many",  # answers 429
    "unauthorized",  # answers 401
    "wrong_secrets",  # names and passwords, or tokens, that are not right
    "passwords_checked",  # the slow way
    "passwords_slowed",  # of these, after a pause for earlier failures
    "users_reloads",
    "users_failures",  # the changed file cannot be used; what was read before goes on
    "groups_failures",  # the machine did not tell in time who is in the administrators' group
    "certificate_reloads",
    "certificate_failures",
)


class Stats:
    """Counters by name, for any thread.

    Attributes:
        since: when they began, seconds since 1970.
    """

    def __init__(self) -> None:
        self.since = time.time()
        self._lock = threading.Lock()
        self._values = dict.fromkeys(KEYS, 0)

    def add(self, key: str) -> int:
        """One more of these; how many there have been."""
        with self._lock:
            self._values[key] += 1
            return self._values[key]

    def values(self) -> dict[str, int]:
        """All of them now."""
        with self._lock:
            return dict(self._values)
