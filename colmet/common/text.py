"""Text for people: numbers with units, times, layout for a terminal, and where the documents are."""

from __future__ import annotations

import math
import os
import re
import textwrap
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone, tzinfo
from functools import wraps
from typing import NamedTuple, Optional
from zoneinfo import ZoneInfo

Number = Optional[float]  # None: not known
UNKNOWN = "-"


def _or_dash(text: Callable[[float], str]) -> Callable[[Number], str]:
    """Return a function of a known value that returns a dash for an unknown one."""

    @wraps(text)
    def text_or_dash(value: Number) -> str:
        return UNKNOWN if value is None or not math.isfinite(value) else text(value)

    return text_or_dash


def _short(value: float) -> str:
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


class Clock(NamedTuple):
    """The time zone of a screen."""

    is_utc: bool = False  # else `place`
    place: ZoneInfo | None = None  # else the zone of this machine

    @classmethod
    def of_place(cls, name: str) -> Clock | None:
        """Return the clock of a zone such as Europe/Paris; None if this machine does not know it."""
        try:
            return cls(False, ZoneInfo(name))
        except (KeyError, ValueError, OSError):  # no such file, no such name, a directory
            return None

    def at(self, seconds: float) -> tzinfo:
        """Return the zone at a time."""
        local = timezone.utc if self.is_utc else self.place or datetime.fromtimestamp(seconds).astimezone().tzinfo
        return local or timezone.utc

    def text(self, seconds: float) -> str:
        """Return date and time of seconds since 1970."""
        if self.is_utc:
            return utc(seconds)
        try:
            if self.place is not None:
                return f"{datetime.fromtimestamp(seconds, self.place):%Y-%m-%d %H:%M:%S}"
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        except (OSError, OverflowError, ValueError):  # a damaged file may have any value
            return f"{seconds} s since 1970"

    def zone(self, *times: float) -> str:
        """Return the name of the zone at some times: UTC, CET, or CET/CEST if that changes in between."""
        if self.is_utc:
            return "UTC"
        names = []
        for seconds in times or (time.time(),):
            try:
                names.append(f"{datetime.fromtimestamp(seconds, self.at(seconds)):%Z}")
            except (OSError, OverflowError, ValueError):
                continue
        return "/".join(dict.fromkeys(names)) or "local time"

    def full_name(self, *times: float) -> str:
        """Return the zone with its place, if that is known: Europe/Paris (CET)."""
        zone = self.zone(*times)
        return zone if self.place is None or zone == "UTC" else f"{self.place.key} ({zone})"

    def interval(self, first: float, last: float, named: bool = True) -> str:
        """Return an interval, with the zone if `named`; the date once, if it is that of both ends."""
        begin, end = self.text(first), self.text(last)
        if begin[:10] == end[:10]:
            end = end[11:]
        return f"{begin} to {end}" + (f" {self.zone(first, last)}" if named else "")


UTC = Clock(True)


_SPACE = "\0"  # stands for a space within a command while a paragraph is wrapped


def printable(text: str) -> str:
    """Return a text in ASCII: all other characters, terminal controls included, are escaped."""
    return "".join([one if one.isascii() and one.isprintable() else ascii(one)[1:-1] for one in text])


def wrap(text: str, width: int, first: str = "", indent: str = "") -> list[str]:
    """Return the lines of a paragraph, at least one, with prefixes: `first`, then `indent`.

    A command, between grave accents, stays in one line, so that it can be copied.
    """
    lines = textwrap.wrap(
        re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", _SPACE), text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_SPACE, " ") for line in lines] or [first.rstrip()]


def columns(rows: Sequence[Sequence[str]], right: Collection[int] | None = None, indent: str = "") -> list[str]:
    """Return rows of cells as aligned lines.

    Args:
        rows: rows of equal length; the first one may be a head.
        right: indices of right-aligned columns; by default those of numbers and dashes below the head, without the
            first column.
        indent: prefix of each line.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    if right is None:
        right = [n for n in range(1, len(widths)) if all(row[n][:1].isdigit() or row[n] == "-" for row in rows[1:])]
    lines = []
    for row in rows:
        cells = [cell.rjust(w) if n in right else cell.ljust(w) for n, (cell, w) in enumerate(zip(row, widths))]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


# By import name: the package of the Python index, and that of Debian if its name is not python3-<module>; "" if Debian
# has none.
_PACKAGES = {"pyarrow": ("pyarrow", ""), "pynvml": ("nvidia-ml-py", ""), "zmq": ("pyzmq", "python3-zmq")}


def how_to_install(*modules: str) -> str:
    """Return the commands that install modules: ``apt-get install python3-rich, or pip install rich``."""
    names = list(dict.fromkeys(name.partition(".")[0] for name in modules))
    packages = [_PACKAGES.get(name, (name, f"python3-{name}")) for name in names]
    pip = f"pip install {' '.join(name for name, _ in packages)}"
    debian = [name for _, name in packages if name]
    return f"apt-get install {' '.join(debian)}, or {pip}" if len(debian) == len(packages) else pip


# of the packages: on Debian and RHEL, on SUSE
DIRECTORIES = ("/usr/share/doc/colmet-common/docs", "/usr/share/doc/packages/colmet-common/docs")


def document(page: str) -> str:
    """Return where a page such as `keys.md` is: the packages' file on this machine, else its place in the source."""
    paths = (f"{directory}/{page}" for directory in DIRECTORIES)
    return next((path for path in paths if os.path.isfile(path)), f"docs/{page} of Colmet's source")
