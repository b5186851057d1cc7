"""Settings of the C library's allocator, for a process of constant size."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h; other C libraries lack the function, or ignore the call.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
MMAP_BYTES = 1 << 20


def tame_malloc(arenas: int) -> bool:
    """Make the C library return memory and share it between threads; return whether it does.

    By default each thread has its own pools, and blocks up to the size of any freed one go into them. Bursts of
    megabytes in one thread and thousands of messages in another then leave holes that are never filled.

    Args:
        arenas: number of pools, for all threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, arenas) and mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))


def trim_malloc() -> None:
    """Return the C library's free memory to the system, as after a start."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
