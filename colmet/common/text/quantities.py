"""Formatting of numbers with units, to three digits; an unknown one is a dash."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Optional

Number = Optional[float]  # None: not known
UNKNOWN = "-"


def _or_dash(text: Callable[[float], str]) -> Callable[[Number], str]:
    """Return a function of a known value that returns a dash for an unknown one."""

    @wraps(text)
    def text_or_dash(value: Number) -> str:
        return UNKNOWN if value is None or not math.isfinite(value) else text(value)

    return text_or_dash


def _short(value: float) -> str:
    """Return about three digits."""
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"


@_or_dash
def cores(value: float) -> str:
    """Return a number of used cores."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


@_or_dash
def count(value: float) -> str:
    """Return a count: 12,345, 12.3 million."""
    if value >= 1e9:
        return f"{_short(value / 1e9)} billion"
    if value >= 1e6:
        return f"{_short(value / 1e6)} million"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


@_or_dash
def rough_count(value: float) -> str:
    """Return a count of the kernel, which cuts it to multiples of 1,024 for each task: some 2,000."""
    if value % 1024 or value >= 1e6:
        return count(value)
    step = 10.0 ** max(0, len(f"{value:.0f}") - 2)
    return f"some {step * math.floor(value / step + 0.5):,.0f}"


@_or_dash
def size(value: float) -> str:
    """Return bytes with a unit of powers of 1024."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    for unit in units[:-1]:
        if abs(value) < 1023.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{_short(value)} {unit}"
        value /= 1024
    return f"{_short(value)} {units[-1]}"


@_or_dash
def percent(value: float) -> str:
    """Return a share in percent; 100 % only for all, and 0 % only for nothing."""
    if 0.995 <= value < 1:
        return f"{min(99.99, 100 * value):.2f} %"
    if 0 < value < 0.005:
        return "< 1 %"
    share = 100 * value
    # halves up, as the page does: "{:.0f}" makes 92 of 92.5
    return f"{math.floor(share + 0.5) if abs(share) < 1e9 else share:.0f} %"


@_or_dash
def rough_percent(value: float) -> str:
    """Return a share in percent, without decimals: over 99 % of nearly all."""
    return "over 99 %" if 0.995 <= value < 1 else percent(value)


@_or_dash
def duration(value: float) -> str:
    """Return seconds as 2 d 3 h, 4 min 5 s, 3.20 s."""
    if value < 59.95:
        return f"{value:.0f} s" if value == round(value) else f"{_short(value)} s"
    rest = round(value)
    for unit, seconds, lower, per in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if rest >= seconds:
            return f"{rest // seconds:,} {unit} {rest % seconds // per} {lower}"
    return f"{rest} s"


@_or_dash
def power(value: float) -> str:
    """Return watts."""
    return f"{_short(value)} W" if value < 1000 else f"{_short(value / 1000)} kW"


@_or_dash
def energy(value: float) -> str:
    """Return joules; from 36 kJ on in Wh, kWh or MWh."""
    if value < 36000:
        return "0 J" if not value else f"{_short(value)} J" if value < 1000 else f"{_short(value / 1000)} kJ"
    hours = value / 3600
    unit, hours = ("Wh", hours) if hours < 1000 else ("kWh", hours / 1000) if hours < 1e6 else ("MWh", hours / 1e6)
    return f"{_short(hours)} {unit}"


def utc(seconds: float) -> str:
    """Return a time as text, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (OSError, OverflowError, ValueError):  # a damaged file may have any value
        return f"{seconds} s since 1970"


# of a plural noun at the end of a text, or before its complement
_ENDING = re.compile(r"(ies|(?:ss|ch|sh|x)es|s)(?=$| without | unanswered)")


def counted(number: int, plural: str) -> str:
    """Return a number and its noun, in the singular if it is one: "1 node", "1,200 missing batches".

    Args:
        number: of things.
        plural: the things, with the noun last, or before "without ..." or "unanswered".
    """
    return f"{number:,} {plural if number != 1 else _ENDING.sub(_singular, plural, count=1)}"


def some_of(names: Sequence[str], most: int) -> str:
    """Return names as text: up to `most`, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _singular(ending: re.Match[str]) -> str:
    return "y" if ending[0] == "ies" else ending[0][:-2] if ending[0] != "s" else ""
