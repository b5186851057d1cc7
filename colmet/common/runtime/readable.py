"""Waiting for descriptors of any number: select() fails above 1023, and busy daemons have more."""

from __future__ import annotations

import errno
import math
import os
import select
from collections.abc import Iterable


def readable(descriptors: Iterable[int], timeout_s: float | None) -> set[int]:
    """Return the descriptors readable without waiting, also at their end; OSError (EBADF) if one is not open."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    found = poller.poll(None if timeout_s is None else max(0, math.ceil(1000 * timeout_s)))
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return {descriptor for descriptor, _ in found}
