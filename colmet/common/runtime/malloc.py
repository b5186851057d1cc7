"""Settings of the C library's allocator, for a process of constant size."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h; other C libraries lack the function, or ignore the call.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
MMAP_BYTES = 1 << 20
TRIM_BYTES = 2 << 20


def tame_malloc(arenas: int) -> bool:
    """Make the C library return memory and share it between threads; return whether it does.

    By default each thread has its own pools, and blocks up to the size of any freed one go into them. Bursts of
    megabytes in one thread and thousands of messages in another then leave holes that are never filled. Free memory at
    the end of a pool is kept up to a bound above what a sample needs: it is not returned and taken again at each.

    Args:
        arenas: number of pools, for all threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_ARENA_MAX: arenas, _M_MMAP_THRESHOLD: MMAP_BYTES, _M_TRIM_THRESHOLD: TRIM_BYTES}
    return all(mallopt(setting, value) for setting, value in settings.items())


def trim_malloc() -> None:
    """Return the C library's free memory to the system, as after a start."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
