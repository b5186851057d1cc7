"""Answer requests in a few threads, with a bound on those that wait: the one admission control of the interface."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from colmet.web.limits import Busy

T = TypeVar("T")


class Workers:
    """Runs functions in daemon threads of its own, which do not keep the process from ending.

    A function waits in a queue, runs in a thread, and is done; `run` refuses one that would be beyond a bound.

    Args:
        name: of the threads.
        threads: the most that run at a time.
        waiting: the most that wait for a thread.
        of_one: the most of one client that wait or run.
        late_s: after which a client gets `Busy`; the thread goes on.
    """

    def __init__(self, name: str, threads: int, waiting: int, of_one: int, late_s: float) -> None:
        self._name = name
        self._threads = threads
        self._most = threads + waiting
        self._of_one = of_one
        self._late_s = late_s
        self._of: Counter[Hashable] = Counter()
        self._queue: queue.SimpleQueue[tuple[Hashable, Callable[[], None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._pending = 0

    @property
    def pending(self) -> int:
        """How many functions run or wait."""
        return self._pending

    async def run(self, whose: Hashable, function: Callable[..., T], *args: Any) -> T:
        """Return or raise what a function does, run in a thread.

        Args:
            whose: its client.
            function: to be run in a thread.
            *args: of the function.

        Raises:
            Busy: too many wait, in all or of this client, or it takes too long.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                value = function(*args)
            except BaseException as err:  # noqa: BLE001 - for the client
                self._tell(loop, future, None, err)
            else:
                self._tell(loop, future, value, None)

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
        self._queue.put((whose, work))
        try:
            return await asyncio.wait_for(future, self._late_s)
        except asyncio.TimeoutError as err:
            raise Busy("the answer takes too long; retry later, or ask for less") from err

    def _serve(self) -> None:
        while True:
            whose, work = self._queue.get()
            try:
                work()
            finally:
                del work  # it holds the request and its answer
                with self._lock:
                    self._pending -= 1
                    self._of[whose] -= 1
                    if not self._of[whose]:
                        del self._of[whose]

    @staticmethod
    def _tell(
        loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], value: Any, err: BaseException | None
    ) -> None:
        def note() -> None:
            if future.done():  # nobody waits any more
                return
            if err is None:
                future.set_result(value)
            else:
                future.set_exception(err)

        try:
            loop.call_soon_threadsafe(note)
        except RuntimeError:  # the loop is closed: the process ends
            return
