"""The kernel's taskstats: struct layouts, queries of live tasks, exit records of ended ones.

Source: Linux include/uapi/linux/taskstats.h and kernel/taskstats.c. Both come over generic netlink, and need
CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
import os
import select
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel import netlink
from colmet.node.kernel.textfiles import parse_cpu_list

TASKSTATS_CMD_GET = 1
TASKSTATS_CMD_NEW = 2
TASKSTATS_CMD_ATTR_PID = 1
TASKSTATS_CMD_ATTR_REGISTER_CPUMASK = 3
TASKSTATS_TYPE_STATS = 3
TASKSTATS_TYPE_AGGR_PID = 4

# struct taskstats up to version 14, in units of 8 bytes; later versions add at the end, with one exception.
_WORDS = {
    **{"cpu_count": 2, "cpu_delay_total": 3, "blkio_count": 4, "blkio_delay_total": 5},
    **{"swapin_count": 6, "swapin_delay_total": 7, "cpu_run_real_total": 8, "cpu_run_virtual_total": 9},
    **{"ac_btime": 17, "ac_etime": 18, "ac_utime": 19, "ac_stime": 20, "ac_minflt": 21, "ac_majflt": 22},
    **{"coremem": 23, "virtmem": 24, "read_char": 27, "write_char": 28, "read_syscalls": 29, "write_syscalls": 30},
    **{"read_bytes": 31, "write_bytes": 32, "cancelled_write_bytes": 33, "nvcsw": 34, "nivcsw": 35},
    **{"ac_utimescaled": 36, "ac_stimescaled": 37, "cpu_scaled_run_real_total": 38},
    **{"freepages_count": 39, "freepages_delay_total": 40},
}
# Version 15 (Linux 6.14 and 6.15) put a delay_max and a delay_min behind cpu, blkio, swapin and freepages; version 16
# moved them to the end.
_V15_INSERTED = {"blkio_count": 2, "swapin_count": 4, "cpu_run_real_total": 6}
# Version 1 ended after cpu_run_virtual_total; the rest is there since 2 and 3, the scaled times and freepages since
# 5 and 6 (Linux 2.6.25): older kernels have never run Python 3.9.
OLDEST_VERSION = 7
FIELDS = tuple(_WORDS)

# Identity of a task, in units of 4 bytes: thread, parent process, process (since version 12, Linux 5.19).
_PID, _PPID, _TGID = 32, 33, 92
_V15_BEFORE_PID = 2 * 6
_V15_BEFORE_TGID = 2 * 12


@dataclass(frozen=True)
class RecordLayout:
    """The places of fields in one version of struct taskstats."""

    columns: npt.NDArray[np.intp]  # the counters of `FIELDS`, in words of 8 bytes
    ids: npt.NDArray[np.intp]  # thread, process (or thread, before version 12), parent process, in words of 4 bytes
    words: int  # the least length of the struct, in words of 8 bytes

    @classmethod
    def of(cls, version: int) -> RecordLayout:
        """Return the layout of a version; ParseError if it is too old."""
        if version < OLDEST_VERSION:
            raise ParseError("struct taskstats", f"version {version}")
        words = dict(_WORDS)
        if version == 15:
            shift = 0
            for name in FIELDS:
                shift = _V15_INSERTED.get(name, shift)
                words[name] += shift
        columns = np.array([words[name] for name in FIELDS], dtype=np.intp)
        pid, ppid, tgid = (_PID, _PPID, _TGID if version >= 12 else _PID)
        if version == 15:
            pid, ppid, tgid = pid + _V15_BEFORE_PID, ppid + _V15_BEFORE_PID, tgid + _V15_BEFORE_TGID
        return cls(columns, np.array([pid, tgid, ppid], dtype=np.intp), max(int(columns.max()), tgid // 2) + 1)


_NO_TASKS: Ints = np.empty(0, dtype=np.int64)
_NO_IDS: Ints = np.empty((0, 3), dtype=np.int64)
_NO_VALUES: Ints = np.empty((0, len(FIELDS)), dtype=np.int64)
_BTIME = FIELDS.index("ac_btime")


def stats_offset(message: bytes) -> tuple[int, int]:
    """Return offset and length of struct taskstats in an answer; ParseError without one."""
    start = netlink.HEADER.size + netlink.GENERIC.size
    for kind, offset, length in netlink.attributes(message, start):
        if kind == TASKSTATS_TYPE_AGGR_PID:
            for inner, inner_offset, inner_length in netlink.attributes(message, offset, offset + length):
                if inner == TASKSTATS_TYPE_STATS:
                    return inner_offset, inner_length
    raise ParseError("taskstats answer", message[:64])


class Form:
    """The form of all messages of this kernel about a task, read from one; ParseError for an unknown version."""

    def __init__(self, message: bytes) -> None:
        self.offset, size = stats_offset(message)
        self._words = size // 8
        version = int.from_bytes(message[self.offset : self.offset + 2], "little")
        self._layout = RecordLayout.of(version)
        if self._words < self._layout.words:
            raise ParseError("struct taskstats", f"version {version} of {size} bytes")
        # headers and attributes, but for lengths, pids and sequences, are the same in each
        places = [*range(4, 6), *range(16, 24), *range(self.offset - 4, self.offset + 2)]
        self._places = np.array(places, dtype=np.intp)
        self._framing = np.frombuffer(message, dtype=np.uint8)[self._places]

    def fits(self, slots: npt.NDArray[np.uint8]) -> bool:
        """Return whether messages, one a row, all have this form."""
        return bool((slots[:, self._places] == self._framing).all())

    def values(self, slots: npt.NDArray[np.uint8]) -> Ints:
        """Return the counters in messages of this form: shape (n, fields), in the order of `FIELDS`."""
        words: npt.NDArray[np.int64] = np.ndarray(
            (len(slots), self._words), "<i8", buffer=slots, offset=self.offset, strides=(slots.strides[0], 8)
        )
        values = words[:, self._layout.columns]
        values[:, _BTIME] &= 0xFFFFFFFF  # 4 bytes and 4 of padding
        return values

    def ids(self, slots: npt.NDArray[np.uint8]) -> Ints:
        """Return thread, process and parent process of each message: shape (n, 3)."""
        words: npt.NDArray[np.uint32] = np.ndarray(
            (len(slots), 2 * self._words), "<u4", buffer=slots, offset=self.offset, strides=(slots.strides[0], 4)
        )
        ids: Ints = words[:, self._layout.ids].astype(np.int64)
        return ids


def decode_answers(slots: npt.NDArray[np.uint8], lengths: Ints) -> Ints:
    """Return the counters in answers, one a row of `slots`; ParseError if one has another form than the first."""
    form = Form(slots[0, : lengths[0]].tobytes())
    if (lengths != lengths[0]).any() or not form.fits(slots):
        raise ParseError("taskstats answers", "answers of different forms to one request")
    return form.values(slots)


class TaskstatsClient:
    """Client that queries the counters of many tasks."""

    BATCH = 512  # requests in one send
    SLOT_BYTES = 1024  # an answer has about 600 bytes
    BUFFER_BYTES = 4 << 20  # for the answers to one send, about 2.5 KiB each in the kernel

    def __init__(self) -> None:
        self._socket = netlink.GenericSocket()
        self._socket.set_receive_buffer(self.BUFFER_BYTES)
        try:
            self._family = self._socket.family("TASKSTATS")
        except BaseException:
            self._socket.close()
            raise
        self.inbox = netlink.Inbox(self.BATCH, self.SLOT_BYTES)  # free for others between two queries
        attribute = netlink.pack_attribute(TASKSTATS_CMD_ATTR_PID, b"\0\0\0\0")
        request = netlink.pack_request(self._family, TASKSTATS_CMD_GET, 0, attribute)
        names, formats, offsets = ["sequence", "tid"], ["=u4", "=u4"], [8, len(request) - 4]
        dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(request)})
        self._requests: npt.NDArray[Any] = np.frombuffer(bytearray(request * self.BATCH), dtype=dtype)
        self.lost = 0  # answers

    def query(self, tids: Ints) -> tuple[Ints, Ints]:
        """Return the live tasks among `tids`, ascending and each once, and their counters, shape (m, fields).

        Raises:
            PermissionError: the process lacks CAP_NET_ADMIN.
            OSError: answers were lost three times over.
        """
        found, values = [_NO_TASKS], [_NO_VALUES]
        for start in range(0, len(tids), self.BATCH):
            some = tids[start : start + self.BATCH]
            for _ in range(3):
                answered, counters, some = self._exchange(some)
                found.append(answered)
                values.append(counters)
                if not len(some):
                    break
                self.lost += len(some)
            else:
                raise OSError(errno.ENOBUFS, f"the kernel's answers for {len(some)} tasks were lost, three times")
        all_found, all_values = np.concatenate(found), np.concatenate(values)
        if (np.diff(all_found) < 0).any():  # tasks queried twice come last
            order = np.argsort(all_found)
            return all_found[order], all_values[order]
        return all_found, all_values

    def _exchange(self, tids: Ints) -> tuple[Ints, Ints, Ints]:
        """Query at most BATCH tasks; return tids with counters, the counters, and tids without any answer."""
        count = len(tids)
        self._drain()
        self._requests["tid"][:count] = tids
        self._requests["sequence"][:count] = np.arange(count)
        self._socket.send(self._requests[:count].tobytes())
        try:
            lengths = self._socket.receive_many(self.inbox, count)
        except OSError as err:
            if err.errno != errno.ENOBUFS:
                raise
            return _NO_TASKS, _NO_VALUES, tids
        slots = self.inbox.slots[: len(lengths)]
        headers = np.ndarray((len(slots), 3), dtype="=u4", buffer=slots, offset=0, strides=(self.SLOT_BYTES, 4))
        kinds = headers[:, 1] & 0xFFFF
        sequences = headers[:, 2]
        if len(slots) and (sequences >= count).any():
            raise ParseError("taskstats answer", f"sequence {int(sequences.max())} of {count} requests")
        good = kinds == self._family
        for index in np.flatnonzero(~good):
            self._check_error(slots[index, : lengths[index]].tobytes())
        heard = np.zeros(count, dtype=bool)
        heard[sequences] = True
        if not good.any():
            return _NO_TASKS, _NO_VALUES, tids[~heard]
        if not good.all():
            slots, lengths, sequences = slots[good], lengths[good], sequences[good]
        return tids[sequences], decode_answers(slots, lengths), tids[~heard]

    def _drain(self) -> None:
        """Drop late answers to a failed exchange."""
        while True:
            try:
                self._socket.receive()
            except BlockingIOError:
                return
            except OSError as err:  # ENOBUFS is reported once
                if err.errno != errno.ENOBUFS:
                    raise

    @staticmethod
    def _check_error(message: bytes) -> None:
        for kind, _, payload in netlink.messages(message):
            if kind != netlink.NLMSG_ERROR:
                raise ParseError("taskstats answer", message[:64])
            code = netlink.error_code(payload)
            if code == errno.ESRCH:
                continue  # ended between list and request
            if code == errno.EPERM:
                raise PermissionError(code, os.strerror(code))
            raise OSError(code, f"taskstats: {os.strerror(code)}")

    def close(self) -> None:
        """Close the socket; can be called twice."""
        self._socket.close()


class Exits(NamedTuple):
    """Ended tasks, in the order of the reports of each CPU."""

    ids: Ints  # thread, process, parent process; shape (n, 3)
    values: Ints  # their final counters; shape (n, fields), in the order of `FIELDS`


class SequenceCount:
    """Count of the gaps in one CPU's record numbers.

    The kernel reads the number from the counter of the task's CPU, and may then send the record to the listener of
    another CPU: a number out of place is missing elsewhere.

    Attributes:
        lost: number of missing records; meaningful only as the sum over all CPUs.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._expected: int | None = None
        # possible continuations of the CPU's own numbers: before the last gap, and after the last number out of place
        self._before_gap: int | None = None
        self._after_stray: int | None = None

    def add(self, numbers: list[int]) -> None:
        """Add the numbers of one or more records, in the order of their arrival."""
        first, count = numbers[0], len(numbers)
        if self._expected is None:
            self._expected = first
        if first == self._expected and numbers == list(range(first, first + count)):
            self._expected = (first + count) & 0xFFFFFFFF
            return
        for number in numbers:
            self._add_one(number)

    def _add_one(self, number: int) -> None:
        expected = self._expected or 0
        ahead = ((number - expected + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        following = (number + 1) & 0xFFFFFFFF
        if ahead < 0 and number not in (self._before_gap, self._after_stray):
            self.lost -= 1
            self._after_stray = following
            return
        self.lost += ahead  # decreases again if the gap was another CPU's number: it is then missing there
        if ahead > 0:
            self._before_gap = expected
        self._expected = following


class ExitRecords:
    """Receiver of the kernel's exit records, on a socket for each CPU; the inbox is only used within `receive`.

    Offline CPUs have a socket, too, as they can become online at any time.

    Attributes:
        fd: readable when there are records.
        records: number of records received.
        overflows: number of times that a socket's buffer was full. `lost` includes the lost records as soon as the same
            CPU reports the next task.

    Raises:
        BackendUnavailable: no permission, or not in the machine's own user and process namespaces.
    """

    BUFFERS_BYTES = 1 << 30  # at most this for all CPUs; only waiting records use memory
    BUFFER_BYTES = (2 << 20, 16 << 20)

    def __init__(self, host: Host, inbox: netlink.Inbox) -> None:
        self.records = 0
        self.overflows = 0
        self._inbox = inbox
        self._form: Form | None = None
        self._family = 0
        self._sockets: dict[int, tuple[netlink.GenericSocket, SequenceCount]] = {}
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        cpus = sorted(parse_cpu_list(host.read("/sys/devices/system/cpu/possible").decode()))
        low, high = self.BUFFER_BYTES
        buffer_bytes = min(max(self.BUFFERS_BYTES // max(1, len(cpus)), low), high)
        try:
            for cpu in cpus:
                self._listen(cpu, buffer_bytes)
        except BaseException:
            self.close()
            raise

    def _listen(self, cpu: int, buffer_bytes: int) -> None:
        listener = netlink.GenericSocket()
        self._sockets[listener.fileno()] = (listener, SequenceCount())
        listener.set_receive_buffer(buffer_bytes)
        self._family = self._family or listener.family("TASKSTATS")
        mask = netlink.pack_attribute(TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, str(cpu).encode() + b"\0")
        listener.send(netlink.pack_request(self._family, TASKSTATS_CMD_GET, 0, mask, netlink.NLM_F_ACK))
        code = None
        while code is None:  # a record may come before the answer
            for kind, _, payload in netlink.messages(listener.receive()):
                if kind == netlink.NLMSG_ERROR:
                    code = netlink.error_code(payload)
        if code == errno.EPERM:
            raise BackendUnavailable("listening to the ends of tasks needs CAP_NET_ADMIN")
        if code == errno.EINVAL:
            raise BackendUnavailable("the kernel sends exit records only outside of containers")
        if code:
            raise BackendUnavailable(f"cannot listen to the ends of tasks on CPU {cpu}: {os.strerror(code)}")
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    @property
    def lost(self) -> int:
        """Number of lost records, by the gaps in each CPU's numbers."""
        return max(0, sum(count.lost for _, count in self._sockets.values()))

    def receive(self) -> Exits:
        """Return the received records; ParseError for one of another form: those before it are lost with it."""
        ids: list[Ints] = []
        values: list[Ints] = []
        room, used = len(self._inbox.slots), 0
        parts: list[tuple[SequenceCount, int]] = []  # CPUs with records in the inbox, and the ends of their records
        for fd, _ in self._epoll.poll(0):
            listener, count = self._sockets[fd]
            while True:
                try:
                    got = len(listener.receive_many(self._inbox, room, used))
                except OSError as err:
                    if err.errno != errno.ENOBUFS:
                        raise
                    self.overflows += 1  # reported once; queued records can still be read
                    continue
                used += got
                if got:
                    parts.append((count, used))
                if used < room:
                    break
                self._decode(parts, ids, values)
                parts, used = [], 0
        if used:
            self._decode(parts, ids, values)
        if len(ids) == 1:  # the usual case, without a copy
            return Exits(ids[0], values[0])
        return Exits(np.concatenate([_NO_IDS, *ids]), np.concatenate([_NO_VALUES, *values]))

    def _decode(self, parts: list[tuple[SequenceCount, int]], ids: list[Ints], values: list[Ints]) -> None:
        """Decode the inbox: all CPUs at once, as each may have sent only a few records."""
        used = parts[-1][1]
        slots = self._inbox.slots[:used]
        numbers = np.ndarray((used,), "=u4", buffer=slots, offset=8, strides=(slots.strides[0],)).tolist()
        start = 0
        for count, end in parts:
            count.add(numbers[start:end])
            start = end
        self.records += used
        if self._form is None or not self._form.fits(slots):
            self._form = Form(slots[0].tobytes())
            if not self._form.fits(slots):
                raise ParseError("taskstats exit records", "records of different forms")
        ids.append(self._form.ids(slots))
        values.append(self._form.values(slots))

    def close(self) -> None:
        """Stop listening; can be called twice."""
        for listener, _ in self._sockets.values():
            listener.close()
        self._sockets = {}
        self._epoll.close()
        self.fd = -1
