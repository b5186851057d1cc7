"""Lists of CPUs as the kernel writes them."""

from __future__ import annotations

import re

MAX_CPUS = 1 << 16  # Linux is built for 8,192 at most
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_cpu_list(text: str | bytes) -> frozenset[int]:
    """Return CPU numbers from ``0-3,8,10-11``; empty text is no CPU.

    Source: cpuset.cpus, /sys/devices/system/cpu/online.

    Raises:
        ValueError: not such a list. The kernel writes each CPU once, ascending; anything else is refused, so that a
            short text cannot cause much work.
    """
    if isinstance(text, bytes):
        text = text.decode("ascii")
    found: list[int] = []
    after = 0  # the lowest number that may come
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not after <= low <= high < MAX_CPUS:
            raise ValueError(f"not an ascending list of CPUs: {part!r:.40}")
        found.extend(range(low, high + 1))
        after = high + 1
    return frozenset(found)
