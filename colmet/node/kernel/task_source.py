"""The kernel's accounting of tasks as one source: values of live tasks, ends and forks of tasks.

Forks come from the process events connector: Linux include/uapi/linux/cn_proc.h and connector.h. It reports them only
outside of containers, and needs CAP_NET_ADMIN before Linux 6.6.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import struct
import time
from collections import Counter

import numpy as np

from colmet.common.daemon.logs import OnceLog
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.capabilities import suggest
from colmet.common.host.host import Host
from colmet.common.schema import MISSING_INT
from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel.netlink import HEADER, Inbox, NetlinkSocket
from colmet.node.kernel.taskstats import FIELDS, ExitRecords, Exits, TaskstatsClient

log = logging.getLogger(__name__)


NETLINK_CONNECTOR = 11
CN_IDX_PROC = CN_VAL_PROC = 1
PROC_CN_MCAST_LISTEN = 1
PROC_EVENT_NONE = 0
PROC_EVENT_FORK = 1
NLMSG_DONE = 3

_CONNECTOR = struct.Struct("=IIIIHH")  # cn_msg: index, value, sequence, acknowledged, length, flags
_LISTEN = struct.Struct("=I")
_WHAT = HEADER.size + _CONNECTOR.size  # offset of proc_event; its kind comes first
_DATA = _WHAT + 16
_FORK = 4  # numbers of 4 bytes: parent's thread, parent process, child's thread, child's process

# Forks only: every exec, exit, renaming and change of owner of the machine would come, too. A load by a BPF program
# gives the bytes in network order.
_ONLY_FORKS = [
    (0x20, 0, 0, _WHAT),  # load 4 bytes
    (0x15, 1, 0, socket.ntohl(PROC_EVENT_NONE)),  # skip one instruction, if equal: the answer to `listen`
    (0x15, 0, 1, socket.ntohl(PROC_EVENT_FORK)),  # skip none, if equal, else one
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of the message
    (0x06, 0, 0, 0),  # take none
]
_NO_FORKS: Ints = np.empty((0, _FORK), dtype=np.int64)


class ForkEvents:
    """Receiver of every fork on the machine; the inbox is only used within `receive`."""

    BUFFER_BYTES = 64 << 20

    def __init__(self, inbox: Inbox) -> None:
        self.events = 0  # forks received
        self.overflows = 0  # times that the socket's buffer was full, and forks were lost
        self._inbox = inbox
        self._socket = NetlinkSocket(NETLINK_CONNECTOR, 1 << (CN_IDX_PROC - 1))
        try:
            self._socket.set_filter(_ONLY_FORKS)
            self._socket.set_receive_buffer(self.BUFFER_BYTES)
            self._listen()
        except BaseException as err:
            self._socket.close()
            if isinstance(err, OSError):
                where = " in this network namespace" if err.errno == errno.ECONNREFUSED else ""
                raise BackendUnavailable(f"the kernel reports no forks{where}: {err}") from err
            raise

    def _listen(self) -> None:
        payload = _CONNECTOR.pack(CN_IDX_PROC, CN_VAL_PROC, 0, 0, _LISTEN.size, 0) + _LISTEN.pack(PROC_CN_MCAST_LISTEN)
        self._socket.send(HEADER.pack(HEADER.size + len(payload), NLMSG_DONE, 0, 0, os.getpid()) + payload)
        while True:  # events may come before the answer
            try:
                answer = self._socket.receive()
            except BlockingIOError:
                raise BackendUnavailable(
                    "the kernel reports no forks: it does so outside of containers, with CONFIG_PROC_EVENTS"
                ) from None
            if len(answer) >= _DATA + 4 and struct.unpack_from("=I", answer, _WHAT)[0] == PROC_EVENT_NONE:
                code = struct.unpack_from("=I", answer, _DATA)[0]
                if code:
                    raise BackendUnavailable(f"the kernel reports no forks: {os.strerror(code)}")
                return

    def receive(self) -> Ints:
        """Return the received forks, in their order: shape (n, 4).

        Parent's thread and process, child's thread and process. The parent of a thread is its process's parent.
        """
        parts = [_NO_FORKS]
        while True:
            try:
                lengths = self._socket.receive_many(self._inbox, len(self._inbox.slots))
            except OSError as err:
                if err.errno != errno.ENOBUFS:
                    raise
                self.overflows += 1
                continue
            if not len(lengths):
                break
            slots = self._inbox.slots[: len(lengths)]
            numbers = np.ndarray(
                (len(slots), _FORK), "=u4", buffer=slots, offset=_DATA, strides=(slots.strides[0], 4)
            ).astype(np.int64)
            kinds = np.ndarray((len(slots),), "=u4", buffer=slots, offset=_WHAT, strides=(slots.strides[0],))
            # the answer to another program's start of listening is sent to all
            whole = (lengths >= _DATA + 4 * _FORK) & (kinds == PROC_EVENT_FORK)
            self.events += int(whole.sum())
            parts.append(numbers if whole.all() else numbers[whole])
            if len(slots) < len(self._inbox.slots):
                break
        return np.concatenate(parts)

    def close(self) -> None:
        """Stop listening; can be called twice."""
        self._socket.close()


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

    Without ends, tasks that start and end between two samples are not counted; without forks, ended tasks that no
    sample saw are of no job. Each is a warning, and is retried after `LISTEN_AGAIN_S`.
    """

    def __init__(self, host: Host) -> None:
        self.client: TaskstatsClient | None = None  # queries live tasks; None while closed
        self.exits: ExitRecords | None = None  # None while not listening
        self.forks: ForkEvents | None = None  # None while not listening
        self._host = host
        self._once = OnceLog(log)
        self._listen_at = math.inf
        self._counted: Counter[str] = Counter()  # by closed sockets
        self._delays = np.array([place for place, name in enumerate(FIELDS) if name in DELAY_FIELDS])
        self._delayacct = host.keep(DELAYACCT)

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
        lacks = self.exits is None or self.forks is None
        return lacks and self.client is not None and time.monotonic() >= self._listen_at

    def listen(self) -> None:
        """Listen to ends and forks, if not listening yet; log a warning on failure."""
        assert self.client is not None  # it is open
        self._listen_at = time.monotonic() + LISTEN_AGAIN_S
        try:
            if self.exits is None:
                self.exits = ExitRecords(self._host, self.client.inbox)
        except (BackendUnavailable, ParseError, OSError, ValueError) as err:
            self._once.warning("no exit records, what starts and ends between two samples is not counted: %s", err)
            return
        try:
            if self.forks is None:
                self.forks = ForkEvents(self.client.inbox)
        except (BackendUnavailable, OSError) as err:
            self._once.warning("no fork events, ended tasks that no sample saw are attributed to no job: %s", err)

    def query(self, tids: Ints) -> tuple[Ints, Ints]:
        """Return the same as `TaskstatsClient.query`; delays not counted by the kernel are missing."""
        assert self.client is not None  # it is open
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
        for part in (self.client, self.exits, self.forks):
            if part is not None:
                part.close()
        self.client = self.exits = self.forks = None
        self._delayacct.close()
