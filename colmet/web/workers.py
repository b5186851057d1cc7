"""Answer requests in a few threads with a bounded queue: the only admission control of the interface."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from colmet.web.limits import Busy

T = TypeVar("T")


class Workers:
    """A pool of daemon threads; they do not delay the end of the process.

    A function waits in a queue, runs in a thread, and is done; `run` refuses functions beyond a bound.

    Args:
        name: prefix of the names of threads.
        threads: max functions running at a time.
        waiting: max functions waiting for a thread.
        of_one: max functions of one client, waiting or running.
        late_s: timeout of a client, in seconds: it gets `Busy`, and the thread continues.
    """

    def __init__(self, name: str, threads: int, waiting: int, of_one: int, late_s: float) -> None:
        self._name = name
        self._threads = threads
        self._most = threads + waiting
        self._of_one = of_one
        self._late_s = late_s
        self._of: Counter[Hashable] = Counter()
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._pending = 0

    @property
    def pending(self) -> int:
        """Number of functions running or waiting."""
        return self._pending

    async def run(self, whose: Hashable, function: Callable[..., T], *args: Any) -> T:
        """Run a function of a client in a thread, and return its result or raise its exception.

        Raises:
            Busy: too many functions wait, in all or for this client, or the timeout is over.
        """
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():  # the client does not wait any more
                self._leave(whose)
                return
            try:
                result = function(*args)
            except BaseException as err:  # noqa: BLE001 - for the client
                self._leave(whose)
                future.set_exception(err)
            else:
                self._leave(whose)  # first, as the client may send its next request at once
                future.set_result(result)

        with self._lock:
            if self._pending >= self._most:
                raise Busy("too many requests at once; retry later")
            if self._of[whose] >= self._of_one:
                raise Busy("too many requests of one client at once; wait for the answers first")
            self._pending += 1
            self._of[whose] += 1
            if self._started < min(self._threads, self._pending):
                self._started += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
        self._queue.put(work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._late_s)
        except asyncio.TimeoutError as err:
            raise Busy("no answer in time; retry later, or ask for less") from err

    def _serve(self) -> None:
        while True:
            work = self._queue.get()
            work()
            del work  # it references the request and its answer

    def _leave(self, whose: Hashable) -> None:
        with self._lock:
            self._pending -= 1
            self._of[whose] -= 1
            if not self._of[whose]:
                del self._of[whose]
