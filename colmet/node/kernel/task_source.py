"""The kernel's accounting of tasks as one source: values of live tasks, ends and forks of tasks."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter

import numpy as np

from colmet.common.daemon.logs import OnceLog
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.common.schema import MISSING_INT
from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel.forks import ForkEvents
from colmet.node.kernel.taskstats import FIELDS, ExitRecords, Exits, TaskstatsClient
from colmet.node.system.privileges import suggest

log = logging.getLogger(__name__)

DELAYACCT = "/proc/sys/kernel/task_delayacct"
# The kernel fills these only for tasks started with kernel.task_delayacct=1, and leaves 0 otherwise.
# cpu_count and cpu_delay_total come from the scheduler and are always right.
DELAY_FIELDS = frozenset(
    f"{what}_{part}" for what in ("blkio", "swapin", "freepages") for part in ("count", "delay_total")
)
LISTEN_AGAIN_S = 600.0


class TaskSource:
    """Source of the values of live tasks, and of the ends and forks of tasks.

    ::

        closed --open()--> queries --listen()--> + ends --listen()--> + forks
           ^                  |                    |                    |
           +-----close()------+--------------------+--------------------+

    Without ends, tasks that start and end between two samples are not counted; without forks, ended tasks are
    attributed by their parents alone. Each is a warning, and is retried after `LISTEN_AGAIN_S`.

    Args:
        host: the machine.
        exit_buffer: bytes of the buffer for exit records of each CPU; None for the default.
        follow_forks: whether to listen to forks.

    Attributes:
        client: queries live tasks; None while closed.
        exits: exit records; None while not listening.
        forks: fork events; None while not listening.
    """

    def __init__(self, host: Host, exit_buffer: int | None = None, follow_forks: bool = True) -> None:
        self.client: TaskstatsClient | None = None
        self.exits: ExitRecords | None = None
        self.forks: ForkEvents | None = None
        self._host = host
        self._once = OnceLog(log)
        self._exit_buffer = exit_buffer
        self._follow_forks = follow_forks
        self._listen_at = math.inf
        self._counted: Counter[str] = Counter()  # by closed sockets
        self._delays = np.array([place for place, name in enumerate(FIELDS) if name in DELAY_FIELDS])
        self._delayacct = host.keep(DELAYACCT)

    @property
    def fd(self) -> int:
        """Descriptor that is readable when there are exit records; -1 while not listening."""
        return -1 if self.exits is None else self.exits.fd

    def open(self) -> None:
        """Connect, and query one task to detect missing requirements now: BackendUnavailable."""
        self.close()
        self.client = TaskstatsClient()
        try:
            self.client.query(np.array([os.getpid()], dtype=np.int64))
        except PermissionError as err:
            raise BackendUnavailable(f"reading taskstats needs CAP_NET_ADMIN; {suggest('CAP_NET_ADMIN')}") from err
        except OSError as err:
            raise BackendUnavailable(f"the kernel does not answer for a task: {err}") from err

    def is_listening_due(self) -> bool:
        """Return whether ends or forks are missing, and `LISTEN_AGAIN_S` have passed since the last attempt."""
        lacks = self.exits is None or (self.forks is None and self._follow_forks)
        return lacks and self.client is not None and time.monotonic() >= self._listen_at

    def listen(self) -> None:
        """Listen to ends and forks, if not listening yet; log a warning on failure."""
        assert self.client is not None  # it is open
        self._listen_at = time.monotonic() + LISTEN_AGAIN_S
        try:
            if self.exits is None:
                self.exits = ExitRecords(self._host, self.client.inbox, self._exit_buffer)
        except (BackendUnavailable, ParseError, OSError, ValueError) as err:
            self._once.warning("no exit records, what starts and ends between two samples is not counted: %s", err)
            return
        try:
            if self.forks is None and self._follow_forks:
                self.forks = ForkEvents(self.client.inbox)
        except (BackendUnavailable, OSError) as err:
            self._once.warning("no fork events, ended tasks are attributed by their parents alone: %s", err)

    def query(self, tids: Ints) -> tuple[Ints, Ints]:
        """Return the same as `TaskstatsClient.query`; delays not counted by the kernel are missing."""
        if self.client is None:
            raise BackendUnavailable("taskstats is not open")
        found, values = self.client.query(tids)
        self._remove_delays(values)
        return found, values

    def receive_exits(self) -> Exits | None:
        """Return the received exit records; None for none."""
        if self.exits is None:
            return None
        exits = self.exits.receive()
        if not len(exits.ids):
            return None
        self._remove_delays(exits.values)
        return exits

    def receive_forks(self) -> Ints | None:
        """Return the received forks, see `ForkEvents.receive`; None while not listening.

        After `receive_exits`, the result includes the forks of all tasks with records received there.
        """
        return None if self.exits is None or self.forks is None else self.forks.receive()

    def counters(self) -> Counter[str]:
        """Return the numbers of received and lost messages, since the start."""
        counts = self._counted.copy()
        if self.client is not None:
            counts.update(answers_lost=self.client.lost)
        if self.exits is not None:
            exits = self.exits
            counts.update(exit_records=exits.records, exit_records_lost=exits.lost, exit_overflows=exits.overflows)
        if self.forks is not None:
            counts.update(fork_events=self.forks.events, fork_overflows=self.forks.overflows)
        return counts

    def _remove_delays(self, values: Ints) -> None:
        if len(values) and not self._delays_are_counted():
            values[:, self._delays] = MISSING_INT

    def _delays_are_counted(self) -> bool:
        try:
            counted = self._delayacct.read().strip() != b"0"
        except FileNotFoundError:  # before Linux 5.14 there was no switch: on if compiled in
            return True
        if not counted:
            self._once.warning(
                "kernel.task_delayacct is 0: the delays for block I/O, swap and reclaim are missing; "
                "set it with: sysctl kernel.task_delayacct=1 (it counts for tasks started from then on)"
            )
        return counted

    def close(self) -> None:
        """Close the sockets; can be called twice."""
        self._counted = self.counters()
        for socket in (self.client, self.exits, self.forks):
            if socket is not None:
                socket.close()
        self.client = self.exits = self.forks = None
        self._delayacct.close()
