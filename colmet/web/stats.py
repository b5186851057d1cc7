"""Counters of the JSON interface, for administrators in /api/v1/status."""

from __future__ import annotations

import threading
import time

KEYS = (
    *("requests_2xx", "requests_3xx", "requests_4xx", "requests_5xx"),
    "defects",  # answers failed by a defect of this program
    "malformed",  # requests that are not HTTP
    "refused_connections",  # requests answered 503 for too many connections
    "broken_connections",  # connections failed for other reasons, such as the handshake of TLS
    "too_many",  # answers 429
    "unauthorized",  # answers 401
    "wrong_secrets",  # wrong passwords and tokens
    "passwords_checked",  # by scrypt
    "passwords_slowed",  # of these, those delayed for earlier failures
    "users_reloads",
    "users_failures",  # the changed file, of users or of leaders, cannot be used; its former content stays in use
    "coordinators_failures",  # of asking Slurm for the coordinators of its accounts
    "groups_failures",  # timeouts in looking up members of the administrators' group
    "certificate_reloads",
    "certificate_failures",
)


class Stats:
    """Counters by name, for any thread.

    Attributes:
        since: start of the counters, seconds since 1970.
    """

    def __init__(self) -> None:
        self.since = time.time()
        self._lock = threading.Lock()
        self._values = dict.fromkeys(KEYS, 0)

    def add(self, key: str) -> int:
        """Add one to a counter, and return its value."""
        with self._lock:
            self._values[key] += 1
            return self._values[key]

    def values(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._values)
