"""Formatting of numbers with units, to three digits; an unknown one is a dash."""

from __future__ import annotations

from typing import Optional

Number = Optional[float]  # None: not known
UNKNOWN = "-"


def _short(value: float) -> str:
    """Return about three digits."""
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"


def cores(value: Number) -> str:
    """Return a number of used cores."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def count(value: Number) -> str:
    """Return a count: 12,345, 12.3 million."""
    if value is None:
        return UNKNOWN
    if value >= 1e9:
        return f"{_short(value / 1e9)} billion"
    if value >= 1e6:
        return f"{_short(value / 1e6)} million"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def size(value: Number) -> str:
    """Return bytes with a unit of powers of 1024."""
    if value is None:
        return UNKNOWN
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    for unit in units[:-1]:
        if abs(value) < 1023.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{_short(value)} {unit}"
        value /= 1024
    return f"{_short(value)} {units[-1]}"


def percent(value: Number) -> str:
    """Return a share in percent; 100 % only for all, and 0 % only for nothing."""
    if value is None:
        return UNKNOWN
    if 0.995 <= value < 1:
        return f"{min(99.99, 100 * value):.2f} %"
    return "< 1 %" if 0 < value < 0.005 else f"{100 * value:.0f} %"


def duration(value: Number) -> str:
    """Return seconds as 2 d 3 h, 4 min 5 s, 3.20 s."""
    if value is None:
        return UNKNOWN
    if value < 59.95:
        return f"{value:.0f} s" if value == round(value) else f"{_short(value)} s"
    rest = round(value)
    for unit, seconds, lower, per in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if rest >= seconds:
            return f"{rest // seconds:,} {unit} {rest % seconds // per} {lower}"
    return f"{rest} s"


def power(value: Number) -> str:
    """Return watts."""
    if value is None:
        return UNKNOWN
    return f"{_short(value)} W" if value < 1000 else f"{_short(value / 1000)} kW"


def energy(value: Number) -> str:
    """Return joules; from 36 kJ on in Wh, kWh or MWh."""
    if value is None:
        return UNKNOWN
    if value < 36000:
        return "0 J" if not value else f"{_short(value)} J" if value < 1000 else f"{_short(value / 1000)} kJ"
    hours = value / 3600
    unit, hours = ("Wh", hours) if hours < 1000 else ("kWh", hours / 1000) if hours < 1e6 else ("MWh", hours / 1e6)
    return f"{_short(hours)} {unit}"
