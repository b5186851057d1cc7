"""Lists of CPUs as the kernel writes them."""

from __future__ import annotations

MAX_CPUS = 1 << 16  # Linux is built for 8,192 at most


def parse_cpu_list(text: str | bytes) -> frozenset[int]:
    """Return CPU numbers from ``0-3,8,10-11``; empty text is no CPU.

    Source: cpuset.cpus, /sys/devices/system/cpu/online.

    Raises:
        ValueError: not such a list. The kernel writes each CPU once, ascending; anything else is refused, so that a
            short text cannot cause much work.
    """
    if isinstance(text, bytes):
        text = text.decode("ascii")
    text = text.strip()
    if not text:
        return frozenset()
    found: list[int] = []
    after = 0  # the lowest number that may come
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _number(first)
        high = _number(last) if dash else low
        if not after <= low <= high:
            raise ValueError(f"not ascending: {part!r:.40}")
        found.extend(range(low, high + 1))
        after = high + 1
    return frozenset(found)


def _number(text: str) -> int:
    # int() alone would accept "+1", "1_0", " 1" and digits of other scripts
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < MAX_CPUS):
        raise ValueError(f"not a CPU's number: {text!r:.40}")
    return int(text)
