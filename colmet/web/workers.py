"""Answer requests in a few threads, each client in its turn: the only admission control of the interface."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from colmet.common.errors import ColmetError

T = TypeVar("T")
Work = Callable[[], None]


class Busy(ColmetError):
    """There are too many requests; answered with 429, for a retry after `after_s` seconds."""

    def __init__(self, text: str, after_s: float = 5.0) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass(eq=False)
class Workers:
    """A pool of daemon threads; they do not delay the end of the process.

    The next function to run is of the client with the fewest running ones; of several such clients, of the one whose
    last turn is longest ago. The last idle thread is only for a client with none running, so that one client, however
    much it asks for, never delays another one by more than that one's own function.
    """

    name: str  # prefix of the names of threads
    threads: int  # max functions running at a time
    waiting: int  # max functions waiting for a thread; beyond, the client with the most loses its newest
    of_one: int  # max functions of one client, waiting or running
    late_s: float  # timeout of a client: it gets `Busy`; a running function continues

    def __post_init__(self) -> None:
        self._changed = threading.Condition()  # its lock may be taken again by the thread that holds it
        self._queues: OrderedDict[Hashable, deque[tuple[Work, Future[Any]]]] = OrderedDict()  # in order of turns
        self._running: Counter[Hashable] = Counter()
        self._started = 0

    @property
    def pending(self) -> int:
        """Number of functions running or waiting."""
        with self._changed:
            return sum(self._running.values()) + sum(map(len, self._queues.values()))

    async def run(self, client: Hashable, function: Callable[..., T], *args: Any) -> T:
        """Run a function of a client in a thread; return its result. Busy if too many wait, or for too long."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                result = function(*args)
            except BaseException as err:  # noqa: BLE001 - for the client
                self._leave(client)
                future.set_exception(err)
            else:
                self._leave(client)  # first, as the client may send its next request at once
                future.set_result(result)

        entry = work, future
        self._put(client, entry)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.late_s)
        except asyncio.TimeoutError as err:
            raise Busy("no answer in time; retry later, or ask for less") from err
        finally:
            with self._changed:  # nobody waits for it any more; it may run, or have run
                if entry in self._queues.get(client, ()):
                    self._remove(client, entry)

    def _put(self, client: Hashable, entry: tuple[Work, Future[Any]]) -> None:
        """Add a function to those waiting; Busy for too many."""
        with self._changed:
            if self._pending_of(client) >= self.of_one:
                raise Busy("too many requests of one client at once; wait for the answers first")
            if self.pending >= self.threads + self.waiting:
                largest = max(self._queues, key=self._pending_of, default=client)
                if self._pending_of(largest) <= self._pending_of(client) + 1:
                    raise Busy("too many requests at once; retry later")
                _, dropped = entry_of_largest = self._queues[largest][-1]
                self._remove(largest, entry_of_largest)
                dropped.set_exception(Busy("too many requests at once, most of them yours; retry later"))
            self._queues.setdefault(client, deque()).append(entry)
            if self._started < min(self.threads, self.pending):
                self._started += 1
                threading.Thread(target=self._serve, name=f"{self.name}-{self._started}", daemon=True).start()
            self._changed.notify_all()

    def _remove(self, client: Hashable, entry: tuple[Work, Future[Any]]) -> None:
        """Remove a function from the queue of its client."""
        self._queues[client].remove(entry)
        if not self._queues[client]:
            del self._queues[client]

    def _pending_of(self, client: Hashable) -> int:
        return self._running[client] + len(self._queues.get(client, ()))

    def _has_idle_thread(self, client: Hashable) -> bool:
        """Return whether a function of this client may run now."""
        idle = self.threads - sum(self._running.values())
        return idle > 1 or (idle == 1 and (not self._running[client] or self.threads == 1))

    def _next(self) -> Work | None:
        """Take the next function, and note that it runs; None if none may run now."""
        clients = [client for client in self._queues if self._has_idle_thread(client)]
        while clients:
            client = min(clients, key=lambda one: self._running[one])
            queue = self._queues[client]
            work, future = queue.popleft()
            if queue:
                self._queues.move_to_end(client)
            else:
                del self._queues[client]
                clients.remove(client)
            if future.set_running_or_notify_cancel():  # else the client does not wait any more
                self._running[client] += 1
                return work
        return None

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (work := self._next()) is None:
                    self._changed.wait()
            work()
            del work  # it references the request and its answer

    def _leave(self, client: Hashable) -> None:
        with self._changed:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]
            self._changed.notify_all()
