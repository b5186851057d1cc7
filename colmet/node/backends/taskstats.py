"""What the kernel's accounting knows of each task: CPU time, delays, faults, memory integrals, I/O.

Live tasks are asked for over generic netlink, many in one send, and decoded together. A job's row is the fold of its
tasks; what a task had when it was last seen stays in its job's totals after it ends.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.common.cli import Options
from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.schema import MISSING_INT, Field, Sample, Schema
from colmet.node import netlink
from colmet.node.accumulator import Accumulator, Ints, as_values
from colmet.node.backend import InputBackend
from colmet.node.host import Host
from colmet.node.jobs import Job

log = logging.getLogger(__name__)

# include/uapi/linux/taskstats.h
TASKSTATS_CMD_GET = 1
TASKSTATS_CMD_NEW = 2
TASKSTATS_CMD_ATTR_PID = 1
TASKSTATS_TYPE_STATS = 3
TASKSTATS_TYPE_AGGR_PID = 4


def _counter(name: str, unit: str, text: str, fold: str = "sum") -> Field:
    return Field(name, unit, "counter", f"{text} Source: struct taskstats.{name}.", fold=fold)


SCHEMA = Schema(
    "taskstats_default",
    "job",
    [
        _counter("cpu_count", "count", "Times a task waited for a CPU."),
        _counter("cpu_delay_total", "nsec", "Time runnable but without a CPU."),
        _counter("blkio_count", "count", "Waits for synchronous block I/O; needs kernel.task_delayacct=1."),
        _counter("blkio_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        _counter("swapin_count", "count", "Waits for pages to come in from swap; needs kernel.task_delayacct=1."),
        _counter("swapin_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        _counter("cpu_run_real_total", "nsec", "CPU time, user and system; on many kernels counted by clock ticks."),
        _counter("cpu_run_virtual_total", "nsec", "CPU time as the scheduler measured it, to the nanosecond."),
        _counter("ac_btime", "ts_date", "Start of the first task.", fold="min"),
        _counter("ac_etime", "usec", "Age of the oldest task.", fold="max"),
        _counter("ac_utime", "usec", "CPU time in user mode."),
        _counter("ac_stime", "usec", "CPU time in the kernel."),
        _counter("ac_minflt", "count", "Page faults without I/O."),
        _counter("ac_majflt", "count", "Page faults with I/O."),
        _counter("coremem", "mbytes-usec", "Resident memory, integrated over CPU time."),
        _counter("virtmem", "mbytes-usec", "Virtual memory, integrated over CPU time."),
        _counter("read_char", "bytes", "Bytes asked for by read calls, cache hits too."),
        _counter("write_char", "bytes", "Bytes given to write calls, cached ones too."),
        _counter("read_syscalls", "count", "Read calls."),
        _counter("write_syscalls", "count", "Write calls."),
        _counter("read_bytes", "bytes", "Bytes read from storage."),
        _counter("write_bytes", "bytes", "Bytes written, or to be written, to storage."),
        _counter("cancelled_write_bytes", "bytes", "Bytes of write_bytes that a truncation took back."),
        _counter("nvcsw", "count", "Voluntary context switches."),
        _counter("nivcsw", "count", "Involuntary context switches."),
        _counter("ac_utimescaled", "usec", "User CPU time, scaled by the CPU's frequency where the kernel can."),
        _counter("ac_stimescaled", "usec", "System CPU time, scaled by the CPU's frequency where the kernel can."),
        _counter("cpu_scaled_run_real_total", "nsec", "CPU time, scaled by the CPU's frequency where the kernel can."),
        _counter("freepages_count", "count", "Waits for memory reclaim; needs kernel.task_delayacct=1."),
        _counter("freepages_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
    ],
)

# The kernel fills these only for tasks that were started with kernel.task_delayacct=1, and leaves 0 otherwise.
# cpu_count and cpu_delay_total come from the scheduler and are always right.
DELAY_FIELDS = frozenset(
    {
        *("blkio_count", "blkio_delay_total", "swapin_count", "swapin_delay_total"),
        *("freepages_count", "freepages_delay_total"),
    }
)

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


@dataclass(frozen=True)
class Layout:
    """Where the counters of `SCHEMA` are in one version of struct taskstats, in words of 8 bytes."""

    columns: npt.NDArray[np.intp]
    words: int  # at least this long

    @classmethod
    def of(cls, version: int) -> Layout:
        """The layout of a version.

        Raises:
            ParseError: the version is too old.
        """
        if version < OLDEST_VERSION:
            raise ParseError("struct taskstats", f"version {version}")
        words = dict(_WORDS)
        if version == 15:
            shift = 0
            for name in SCHEMA.names:
                shift = _V15_INSERTED.get(name, shift)
                words[name] += shift
        columns = np.array([words[name] for name in SCHEMA.names], dtype=np.intp)
        return cls(columns, int(columns.max()) + 1)


_NO_TASKS: Ints = np.empty(0, dtype=np.int64)
_NO_VALUES: Ints = np.empty((0, len(SCHEMA.fields)), dtype=np.int64)
_BTIME = SCHEMA.names.index("ac_btime")


def stats_offset(message: bytes) -> tuple[int, int]:
    """Where struct taskstats starts in an answer, and its length in bytes.

    Raises:
        ParseError: the answer holds none.
    """
    start = netlink.HEADER.size + netlink.GENERIC.size
    for kind, offset, length in netlink.attributes(message, start):
        if kind == TASKSTATS_TYPE_AGGR_PID:
            for inner, inner_offset, inner_length in netlink.attributes(message, offset, offset + length):
                if inner == TASKSTATS_TYPE_STATS:
                    return inner_offset, inner_length
    raise ParseError("taskstats answer", message[:64])


def decode_answers(slots: npt.NDArray[np.uint8], lengths: Ints) -> Ints:
    """The counters in answers of one form.

    Args:
        slots: one answer a row, shape (n, slot bytes).
        lengths: bytes of each, shape (n,).

    Returns:
        Shape (n, fields), in the order of `SCHEMA`.

    Raises:
        ParseError: one is not an answer, or not of the same form as the first.
    """
    first = slots[0, : lengths[0]].tobytes()
    offset, size = stats_offset(first)
    version = int.from_bytes(first[offset : offset + 2], "little")
    layout = Layout.of(version)
    if size < 8 * layout.words:
        raise ParseError("struct taskstats", f"version {version} of {size} bytes")
    # the kernel builds all answers alike: what frames the numbers (and is not a pid or sequence) is the same in each
    framing = [slots[:, :4], slots[:, 4:6], slots[:, 16:24], slots[:, offset - 4 : offset + 2]]
    if (lengths != lengths[0]).any() or any((part != part[0]).any() for part in framing):
        raise ParseError("taskstats answers", "answers of different forms to one request")
    words: npt.NDArray[np.int64] = np.ndarray(
        (len(slots), size // 8), dtype="<i8", buffer=slots, offset=offset, strides=(slots.strides[0], 8)
    )
    values = words[:, layout.columns]
    values[:, _BTIME] &= 0xFFFFFFFF  # 4 bytes and 4 of padding
    return values


class TaskstatsClient:
    """Asks the kernel for the counters of many tasks."""

    BATCH = 512  # requests in one send
    SLOT_BYTES = 1024  # an answer takes about 600 bytes
    BUFFER_BYTES = 4 << 20  # room for the answers to one send, which take about 2.5 KiB each in the kernel

    def __init__(self) -> None:
        self._socket = netlink.GenericSocket()
        self._socket.set_receive_buffer(self.BUFFER_BYTES)
        try:
            self._family = self._socket.family("TASKSTATS")
        except BaseException:
            self._socket.close()
            raise
        self._inbox = netlink.Inbox(self.BATCH, self.SLOT_BYTES)
        self._requests = self._template()
        self.lost = 0  # answers that did not arrive

    def _template(self) -> npt.NDArray[Any]:
        attribute = netlink.pack_attribute(TASKSTATS_CMD_ATTR_PID, b"\0\0\0\0")
        request = netlink.pack_request(self._family, TASKSTATS_CMD_GET, 0, attribute)
        dtype = np.dtype(
            {
                "names": ["sequence", "tid"],
                "formats": ["=u4", "=u4"],
                "offsets": [8, len(request) - 4],
                "itemsize": len(request),
            }
        )
        return np.frombuffer(bytearray(request * self.BATCH), dtype=dtype)

    def query(self, tids: Ints) -> tuple[Ints, Ints]:
        """The counters of live tasks.

        Args:
            tids: ascending, each once, shape (n,).

        Returns:
            The tids that answered, ascending, shape (m,), and their counters, shape (m, fields). A task that has
            ended meanwhile is left out.

        Raises:
            PermissionError: the process lacks CAP_NET_ADMIN.
            ParseError: an answer has another form.
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
        if (np.diff(all_found) < 0).any():  # what was asked for twice comes last
            order = np.argsort(all_found)
            return all_found[order], all_values[order]
        return all_found, all_values

    def _exchange(self, tids: Ints) -> tuple[Ints, Ints, Ints]:
        """Ask for at most BATCH tasks: those that answered, their counters, and those of whom nothing was heard."""
        count = len(tids)
        self._drain()
        self._requests["tid"][:count] = tids
        self._requests["sequence"][:count] = np.arange(count)
        self._socket.send(self._requests[:count].tobytes())
        try:
            lengths = self._socket.receive_many(self._inbox, count)
        except OSError as err:
            if err.errno != errno.ENOBUFS:
                raise
            return _NO_TASKS, _NO_VALUES, tids
        slots = self._inbox.slots[: len(lengths)]
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
        """Forget answers that came late to an exchange that failed."""
        while True:
            try:
                self._socket.receive()
            except BlockingIOError:
                return
            except OSError as err:  # ENOBUFS is told once and then forgotten
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
        """Close; also twice."""
        self._socket.close()


class TaskstatsBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job that has or had a task."""

    name = "taskstats"
    schema = SCHEMA
    DELAYACCT = "/proc/sys/kernel/task_delayacct"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._client: TaskstatsClient | None = None
        self._totals = Accumulator(SCHEMA, age="ac_etime", steady=("cpu_run_virtual_total", "nvcsw", "ac_minflt"))
        self._delays = np.array([name in DELAY_FIELDS for name in SCHEMA.names])
        self._told_of_delays = False

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """It has none: it is always on."""

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> TaskstatsBackend:
        """Always on."""
        return cls(host)

    def open(self) -> None:
        """Connect to the kernel and ask for one task, so that what is missing shows now.

        Raises:
            BackendUnavailable: no CAP_NET_ADMIN, or a kernel without taskstats.
        """
        self.close()
        self._client = TaskstatsClient()
        try:
            self._client.query(np.array([os.getpid()], dtype=np.int64))
        except PermissionError as err:
            raise BackendUnavailable(
                "reading taskstats needs CAP_NET_ADMIN: start colmet-node as root, or give it that capability"
            ) from err
        except OSError as err:
            raise BackendUnavailable(f"the kernel does not answer for a task: {err}") from err

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job that has or had a task."""
        if self._client is None:
            raise BackendUnavailable("taskstats is not open")
        delays = self._delays_are_counted()
        self._totals.keep_only({job.id for job in jobs})
        asked = [np.array(job.tids(), dtype=np.int64) for job in jobs]
        # all jobs in one query: many tasks share the cost of a send
        wanted = asked[0] if len(asked) == 1 else np.unique(np.concatenate([_NO_TASKS, *asked]))
        found, values = self._client.query(wanted)
        if not delays:
            values[:, self._delays] = MISSING_INT
        for job, tids in zip(jobs, asked):
            if len(tids) != len(found) or (tids != found).any():
                place = np.searchsorted(found, tids)
                place = place[np.append(found, -1)[place] == tids]
                totals = self._totals.update(job.id, found[place], values[place])
            else:
                totals = self._totals.update(job.id, found, values)
            if totals is not None:
                yield Sample(job.id, as_values(SCHEMA, totals))

    def _delays_are_counted(self) -> bool:
        try:
            counted = self._host.read(self.DELAYACCT).strip() != b"0"
        except FileNotFoundError:  # before Linux 5.14 there was no switch: on where it is compiled in
            return True
        if not counted and not self._told_of_delays:
            log.warning(
                "kernel.task_delayacct is 0: the delays for block I/O, swap and reclaim are missing; "
                "set it with: sysctl kernel.task_delayacct=1 (it counts for tasks started from then on)"
            )
            self._told_of_delays = True
        return counted

    def close(self) -> None:
        """Close the socket; also twice."""
        if self._client is not None:
            self._client.close()
            self._client = None
