"""Counters of the JSON interface, which /api/v1/status shows to administrators."""

from __future__ import annotations

import threading
import time

KEYS = (
    *("requests_2xx", "requests_3xx", "requests_4xx", "requests_5xx"),
    "defects",  # answers that failed by a fault of this program
    "malformed",  # requests that are not HTTP
    "refused_connections",  # requests answered 503, as there are too many connections
    "broken_connections",  # connections that failed in another way, such as in the handshake of TLS
    "too_many",  # answers 429
    "unauthorized",  # answers 401
    "wrong_secrets",  # wrong passwords and tokens
    "passwords_checked",  # by scrypt
    "passwords_slowed",  # of these, after a pause for earlier failures
    "users_reloads",
    "users_failures",  # the changed file cannot be used; its former content stays in use
    "groups_failures",  # the members of the administrators' group were not known in time
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
        """Count one more, and return how many there are."""
        with self._lock:
            self._values[key] += 1
            return self._values[key]

    def values(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._values)
