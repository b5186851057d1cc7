"""Perf events of cgroups, counted by the C library lib_perf_hw."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence

from colmet.node.kernel.perfevents import Event
from colmet.node.system import clib

ABI = 2


class _Event(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("type", "config", "config1", "config2"))


class PerfLibrary:
    """lib_perf_hw, with the types of its functions.

    Raises:
        BackendUnavailable: it is not built, or of another Colmet.
    """

    def __init__(self) -> None:
        library = clib.load("lib_perf_hw", ABI, "LIB_PERFHW_PATH")
        self.open, self.read, self.close = library.perf_hw_open, library.perf_hw_read, library.perf_hw_close
        self.drop = library.perf_hw_drop
        numbers, handle, size = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_size_t
        events = ctypes.POINTER(_Event)
        self.open.argtypes = (ctypes.c_int, events, size, numbers, size, numbers, ctypes.POINTER(handle))
        self.read.argtypes = (handle, ctypes.POINTER(ctypes.c_uint64), size)
        self.drop.argtypes = (handle, size)
        self.close.argtypes = (handle,)
        self.close.restype = None


class EventCounters:
    """Events of one cgroup on some CPUs, counted from now on; `group` is the descriptor of its directory.

    Attributes:
        errors: for each event 0, or the errno of its refusal.

    Raises:
        OSError: nothing can be counted, or EMFILE.
    """

    def __init__(self, library: PerfLibrary, group: int, events: Sequence[Event], cpus: Iterable[int]) -> None:
        count, packed = len(events), (_Event * len(events))(*[_Event(*event[:4]) for event in events])
        ordered = sorted(cpus)
        numbers = (ctypes.c_int * len(ordered))(*ordered)
        errors = (ctypes.c_int * count)()
        self._handle = ctypes.c_void_p()
        code = library.open(group, packed, count, numbers, len(ordered), errors, ctypes.byref(self._handle))
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        self.errors = list(errors)
        self._library = library
        self._counts = (ctypes.c_uint64 * (3 * len(events)))()

    def read(self) -> list[int]:
        """Return for each event its count, the ns enabled and the ns counted, summed over the CPUs."""
        code = self._library.read(self._handle, self._counts, len(self.errors))
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return self._counts[:]

    def drop(self, event: int) -> int:
        """Stop counting one of the events; return the number of descriptors released, 0 if others need them."""
        released: int = self._library.drop(self._handle, event)
        return released

    def close(self) -> None:
        """Release the descriptors; can be called twice."""
        self._library.close(self._handle)
        self._handle = ctypes.c_void_p()


def scaled(count: int, enabled_ns: int, running_ns: int) -> tuple[int | None, float | None]:
    """Return the value of an interval, and the counted share of the interval.

    The value is None if the job ran and the event never had a counter; the share is None if the job did not run.
    """
    if enabled_ns <= 0:
        return count, None
    if running_ns <= 0:
        return None, 0.0
    if running_ns >= enabled_ns:
        return count, 1.0
    return round(count * enabled_ns / running_ns), running_ns / enabled_ns
