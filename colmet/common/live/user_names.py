"""Look up the names of users reported by number."""

from __future__ import annotations

import pwd
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MAX_NAMES = 100_000
NAME_S = 3600.0  # lifetime of a name
NO_NAME_S = 60.0  # lifetime of a failed look-up


class UserNames:
    """A look-up of the names of users reported by number, as in the cgroup names of OAR 3 and Slurm.

    Never waits: a thread queries this machine, and through it perhaps a directory service. Until the answer, and for
    unknown numbers, the number is the name. `name_of` raises KeyError or OSError for these.
    """

    def __init__(
        self,
        name_of: Callable[[int], str] = lambda number: pwd.getpwuid(number).pw_name,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name_of = name_of
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._found: OrderedDict[str, tuple[str, float]] = OrderedDict()  # name, and time of the next query
        self._asked: set[str] = set()
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, user: str) -> str:
        """Return the name of a user; the number until the name is known."""
        if not (user.isascii() and user.isdigit()) or len(user) > 10:
            return user
        with self._lock:
            name, until = self._found.get(user, (user, 0.0))
            if until <= self._monotonic() and user not in self._asked:
                self._asked.add(user)
                self._queue.put(user)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="names", daemon=True)
                    self._thread.start()
        return name

    def _run(self) -> None:
        while True:
            user = self._queue.get()
            try:
                name, keep_s = self._name_of(int(user)), NAME_S
            except (KeyError, OSError, OverflowError):
                name, keep_s = user, NO_NAME_S
            with self._lock:
                self._found[user] = name, self._monotonic() + keep_s
                self._found.move_to_end(user)
                if len(self._found) > MAX_NAMES:
                    self._found.popitem(last=False)
                self._asked.discard(user)
