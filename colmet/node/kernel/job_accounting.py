"""Sums of the kernel's accounting of tasks by job, made inside the kernel by the programs of lib_bpf."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.common.errors import BackendUnavailable
from colmet.common.host.capabilities import suggest
from colmet.node.jobs.directory_keys import HIERARCHIES, PINS, DirectoryName, RootDirectory
from colmet.node.kernel import clib

log = logging.getLogger(__name__)

ABI = 2  # ACCOUNTING_VERSION in accounting.h
MAX_JOBS, MAX_TASKS = 2048, 16384  # 1.9 and 4.6 MB of the kernel's memory
COUNTERS = (
    *("cpu_count", "cpu_delay", "blkio_count", "blkio_delay", "swapin_count", "swapin_delay", "freepages_count"),
    *("freepages_delay", "utime", "stime", "runtime", "minor_faults", "major_faults", "rss_integral", "vm_integral"),
    *("read_chars", "written_chars", "read_calls", "write_calls", "read_bytes", "written_bytes", "cancelled_bytes"),
    *("voluntary_switches", "involuntary_switches"),
)
GAUGES = (
    *("tasks", "processes", "vm_size", "rss_file", "rss_anon", "rss_shmem", "swap", "hugetlb"),
    *("largest_process", "largest_mapped"),  # of one process
)
LOSSES = ("jobs_full", "tasks_full", "late_moves", "threads_beyond", "too_deep", "missed_ends")
# struct accounting_row of job_accounting.h: times in ns of CLOCK_MONOTONIC, memory in pages.
ROW = np.dtype(
    [
        *[(name, "u8") for name in ("key", "is_final", "made_ns", "removed_ns", "oldest_ns")],
        *[(name, "i8") for name in ("forked", "entered", "left", "ended", "oom_kills", "present")],
        *[(name, "u8") for name in ("largest_process", "implausible", "root")],
        *[("counters", "i8", len(COUNTERS)), ("gauges", "i8", len(GAUGES))],
        *[("name", "S64"), ("parent_name", "S32")],
    ]
)
Rows = npt.NDArray[np.void]
_MESSAGE_BYTES = 1 << 20  # the verifier's log of a refused program


class JobAccounting:
    """Programs in the kernel that sum up what the tasks of each job use, and their only reader.

    They go on without this process where a bpffs is mounted: there they are pinned, in a directory for this version and
    these hierarchies, and the next start takes them over. Another process that has them keeps them: this one then loads
    programs of its own, which end with it.

    Args:
        hierarchies: names of `HIERARCHIES` with jobs, the best first; at most `MAX_HIERARCHIES`.
        pins: directory of all pins; "" for none.

    Attributes:
        is_taken_over: whether the programs were there already.
        is_pinned: whether they go on without this process.
        fd: readable once a task of a job has ended since the last `list_jobs`.

    Raises:
        BackendUnavailable: the kernel does not take the programs, or libbpf is missing; the text has the remedy.
    """

    def __init__(
        self, hierarchies: Sequence[str], pins: str, max_jobs: int = MAX_JOBS, max_tasks: int = MAX_TASKS
    ) -> None:
        self._library = library = clib.load("lib_bpf", ABI, "LIB_BPF_PATH")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._handle = handle = pointer()
        library.accounting_set_roots.argtypes = (pointer, pointer, pointer, size)
        library.accounting_add_job.argtypes = (pointer, *[ctypes.c_uint64] * 2, *[ctypes.c_char_p] * 2)
        library.accounting_read.argtypes = (pointer, pointer, size)
        library.accounting_list.argtypes = (pointer, pointer, size)
        library.accounting_fd.argtypes = library.accounting_rest.argtypes = (pointer,)
        library.accounting_rest.restype = None
        library.accounting_forget.argtypes = (pointer, ctypes.c_uint64)
        library.accounting_losses.argtypes = (pointer, pointer)
        library.accounting_close.argtypes = (pointer,)
        library.accounting_close.restype = None
        library.accounting_unpin.argtypes = (ctypes.c_char_p,)
        self._rows = np.zeros(max_jobs, ROW)
        self._lock = -1
        numbers = [HIERARCHIES[name] for name in hierarchies]
        programs = os.path.join(os.path.dirname(library._name), "accounting.bpf.o")
        # other programs have other pins
        form = f"{ABI}-{_checksum(programs):08x}-{'-'.join(map(str, [*numbers, max_jobs, max_tasks]))}"
        own_pins = self._pin_folder(pins, form)
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        for folder in dict.fromkeys((own_pins, "")):
            status = library.accounting_open(
                os.fsencode(programs),
                (ctypes.c_uint32 * len(numbers))(*numbers),
                size(len(numbers)),
                max_jobs,
                max_tasks,
                os.fsencode(folder) if folder else None,
                message,
                size(len(message)),
                ctypes.byref(handle),
            )
            if status >= 0 or not folder:
                break
            why = _explain(-status, message.value.decode("utf-8", "replace"))
            log.warning("job accounting ends with this process, pins cannot be used path=%s: %s", folder, why)
            self._unlock()
        if status < 0:
            self._unlock()
            raise BackendUnavailable(_explain(-status, message.value.decode("utf-8", "replace")))
        self.fd = int(library.accounting_fd(handle))
        self.is_taken_over, self.is_pinned = status == 1, bool(folder)

    def _pin_folder(self, pins: str, name: str) -> str:
        """Lock the pins and remove those of other versions; return the folder of this one, "" without pins."""
        if not pins or not os.path.ismount(os.path.dirname(pins)):
            return ""
        try:
            os.makedirs(pins, 0o700, exist_ok=True)
            self._lock = os.open(pins, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            others = [other for other in os.listdir(pins) if other != name]
        except OSError as err:
            log.info("job accounting ends with this process, its pins cannot be used path=%s: %s", pins, err)
            self._unlock()
            return ""
        for other in others:
            self._library.accounting_unpin(os.fsencode(os.path.join(pins, other)))
        return os.path.join(pins, name)

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def set_roots(self, roots: Sequence[RootDirectory]) -> None:
        """Have directories of jobs below these roots counted from their making on, and below no others: OSError."""
        keys = np.array([root.key for root in roots], dtype="u8")
        values = np.array([(root.depth, root.is_oar3) for root in roots], dtype="u4").reshape(-1, 2)
        self._check(self._library.accounting_set_roots(self._handle, keys.ctypes.data, values.ctypes.data, len(roots)))

    def add_job(self, key: int, name: DirectoryName) -> bool:
        """Have an existing directory counted, its tasks by the next reading; return whether there is room: OSError."""
        names = os.fsencode(name.parent), os.fsencode(name.name)
        status = self._library.accounting_add_job(self._handle, key, name.root, *names)
        if status not in (-errno.EEXIST, -errno.E2BIG):
            self._check(status)
        return bool(status != -errno.E2BIG)

    def read(self) -> Rows:
        """Return a row for each directory, `ROW`; valid until the next call."""
        count = self._check(self._library.accounting_read(self._handle, self._rows.ctypes.data, len(self._rows)))
        return self._rows[:count]

    def list_jobs(self) -> Rows:
        """Return the same without reading tasks: what live ones have is as of the last `read`."""
        self._library.accounting_rest(self._handle)
        count = self._check(self._library.accounting_list(self._handle, self._rows.ctypes.data, len(self._rows)))
        return self._rows[:count]

    def forget(self, key: int) -> None:
        """Forget a directory, after its last row."""
        self._library.accounting_forget(self._handle, key)

    def losses(self) -> Mapping[str, int]:
        """Return what rows lack, `LOSSES`: OSError."""
        values = (ctypes.c_uint64 * len(LOSSES))()
        self._check(self._library.accounting_losses(self._handle, values))
        return dict(zip(LOSSES, values))

    def close(self) -> None:
        """Release the programs: pinned ones go on; can be called twice."""
        if self._handle.value:
            self._library.accounting_close(self._handle)
            self._handle = ctypes.c_void_p()
        self._unlock()

    def _check(self, status: Any) -> int:
        if status < 0:
            raise OSError(-status, f"accounting of jobs in the kernel: {os.strerror(-status)}")
        return int(status)


def pin_directory() -> str:
    """Return the directory of all pins; "" for none."""
    return os.environ.get("COLMET_PINS", PINS)


def remove_pins(pins: str) -> None:
    """Remove all pins, which ends counting without an agent, but those that an agent has."""
    with contextlib.suppress(OSError, BackendUnavailable):
        lock = os.open(pins, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            library = clib.load("lib_bpf", ABI, "LIB_BPF_PATH")
            for folder in os.listdir(pins):
                library.accounting_unpin(os.fsencode(os.path.join(pins, folder)))
        finally:
            os.close(lock)


def _checksum(path: str) -> int:
    try:
        return zlib.crc32(Path(path).read_bytes())
    except OSError as err:
        raise BackendUnavailable(f"{err}; install Colmet again") from err


def _explain(code: int, message: str) -> str:
    """Return why the kernel or libbpf refuses, and the remedy."""
    lines = [line for line in message.splitlines() if line.strip()]
    why = lines[-1].removeprefix("libbpf: ")[:200] if lines else os.strerror(code)
    if code == errno.ENOSYS:
        return f"{why} (Debian and Ubuntu: libbpf1; Red Hat: libbpf)"
    if code in (errno.EPERM, errno.EACCES):
        return f"loading programs needs CAP_BPF and CAP_PERFMON; {suggest('CAP_BPF', 'CAP_PERFMON')}"
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        return "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
    return f"this kernel does not take the programs: {os.strerror(code)}: {why}"
