"""The perf events of one job: wanted events, open events, counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from colmet.common.host.host import Host
from colmet.common.schema import Value
from colmet.node.kernel import perfcounters
from colmet.node.kernel.perfevents import Event
from colmet.node.kernel.perfuse import PerfUse
from colmet.node.schedule import Every

_NOTHING = [0, 0, 0]


class CountedEvent:
    """A counted event, as a key of tables: one object for each event at a time."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event


class EventColumn:
    """One column, and the column of its scale."""

    __slots__ = ("counted", "counter", "every", "job_id", "number", "scale")

    def __init__(self, number: int, counted: CountedEvent, job_id: int | None, every: Every | None) -> None:
        self.number = number
        self.counter, self.scale = f"counter_{number}", f"scale_{number}"  # their names
        self.counted = counted
        self.job_id = job_id  # the only job counted; None for all
        self.every = every  # times of its values; None for every sample


class _OpenedEvents:
    """Events of one job that were opened together."""

    __slots__ = ("counters", "descriptors", "places")

    def __init__(self, counters: perfcounters.EventCounters, events: Sequence[CountedEvent], descriptors: int) -> None:
        self.counters = counters
        # of the events still wanted, in the result of `counters.read`
        self.places = {event: 3 * n for n, (event, code) in enumerate(zip(events, counters.errors)) if not code}
        self.descriptors = descriptors  # their number


class JobEvents:
    """The perf events of one job.

    ::

        wanted, not open --open()--> counting --extend: open() on more CPUs--> counting
              ^                        |  |
              |                        |  +--change(): some are closed, others wanted--> counting, some not open
              +--------release()-------+

    The host bounds the number of descriptors.
    """

    def __init__(self, host: Host, columns: Sequence[EventColumn]) -> None:
        self.columns = columns  # those of the job
        self.missing = self.wanted()  # wanted events that are not open
        self.cpus: frozenset[int] = frozenset()  # on which they are counted
        self.refused: set[CountedEvent] = set()  # not supported by one of the CPUs
        self.group = ""  # the group made for the job, "" for its own or none
        self.use = PerfUse(host)  # searches the job for other users of perf
        self.yields = False  # whether the job uses perf itself: no event may be open then
        self.is_uncounted = False  # whether the job was counted as one without counted events
        self.try_at = 0  # the first tick for the next attempt to open
        self._host = host
        self._opened: list[_OpenedEvents] = []
        self._before: dict[EventColumn, list[int]] = {}  # counts at the column's last value

    @property
    def is_counting(self) -> bool:
        """Whether events are open."""
        return bool(self._opened)

    def wanted(self) -> list[CountedEvent]:
        """Return the events in its columns, each once."""
        return list(dict.fromkeys(column.counted for column in self.columns))

    def open(
        self, library: perfcounters.PerfLibrary, directory: str, events: Sequence[CountedEvent], cpus: frozenset[int]
    ) -> list[tuple[CountedEvent, int]]:
        """Open events of a cgroup on some CPUs; return those that a CPU does not support, each with the errno.

        Raises:
            OSError: nothing can be counted; EMFILE: no descriptors are left.
        """
        count = len(events) * len(cpus)
        if not self._host.reserve(count):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            group = self._host.open(directory)
            try:
                counters = perfcounters.EventCounters(library, group, [counted.event for counted in events], cpus)
            finally:
                os.close(group)
        except BaseException:
            self._host.release(count)
            raise
        self._opened.append(_OpenedEvents(counters, events, count))
        self.cpus |= cpus
        refused = [(counted, code) for counted, code in zip(events, counters.errors) if code]
        self.refused.update(counted for counted, _ in refused)
        return refused

    def change(self, columns: Sequence[EventColumn]) -> None:
        """Set other columns: close the events in none of them, and note the missing ones.

        Remaining events continue their counts.
        """
        self.columns = columns
        wanted = self.wanted()
        for opened in self._opened:
            for event in [event for event in opened.places if event not in wanted]:
                released = opened.counters.drop(opened.places.pop(event) // 3)
                opened.descriptors -= released
                self._host.release(released)
            if not opened.places:
                opened.counters.close()
                self._host.release(opened.descriptors)
        self._opened = [opened for opened in self._opened if opened.places]
        if not self._opened:
            self.cpus = frozenset()
        self.refused.intersection_update(wanted)
        have = self.refused.union(*[opened.places for opened in self._opened])
        before = {column.counted: counts for column, counts in self._before.items() if column.counted in have}
        self._before = {column: before[column.counted] for column in columns if column.counted in before}
        self.missing = [event for event in wanted if event not in have]
        self.try_at = 0

    def values(self, columns: Sequence[EventColumn]) -> dict[str, Value]:
        """Return the values and scales of some columns, each since its last value; OSError if unreadable."""
        counts = self._read()
        found: dict[str, Value] = {}
        before = self._before
        for column in columns:
            now = counts.get(column.counted)
            if now is not None:
                then = before.get(column, _NOTHING)
                before[column] = now
                found[column.counter], found[column.scale] = perfcounters.scaled(
                    now[0] - then[0], now[1] - then[1], now[2] - then[2]
                )
        return found

    def _read(self) -> dict[CountedEvent, list[int]]:
        """Return count, ns enabled and ns counted of each event, summed over its open counters."""
        counts: dict[CountedEvent, list[int]] = {}
        for opened in self._opened:
            read = opened.counters.read()
            for counted, at in opened.places.items():
                found = read[at : at + 3]
                if counted in counts:
                    found = [one + other for one, other in zip(found, counts[counted])]
                counts[counted] = found
        for counted in self.refused:
            counts.pop(counted, None)
        return counts

    def release(self) -> None:
        """Close all events; all wanted ones are missing then."""
        for opened in self._opened:
            opened.counters.close()
            self._host.release(opened.descriptors)
        self._opened, self._before, self.cpus = [], {}, frozenset()
        self.missing = self.wanted()
