"""Quiet hours, in the time zone of this machine, also across midnight."""

from __future__ import annotations

import argparse
import datetime
import re
from typing import NamedTuple

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d) ?- ?([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


class Hours(NamedTuple):
    """An interval of each day, in minutes since midnight; it ends before it begins if midnight is in it."""

    begin: int
    end: int


def hours(text: str) -> Hours:
    """Convert quiet hours, an option type: 22:00-07:00."""
    found = _HOURS.fullmatch(text.strip())
    begin, end = (int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])) if found else (0, 0)
    if begin == end:
        raise argparse.ArgumentTypeError(f"{text!r:.100} are not hours such as 22:00-07:00")
    return Hours(begin, end)


def local_time(now: float) -> datetime.datetime:
    """Return a moment, in seconds since 1970, with the time zone of this machine."""
    return datetime.datetime.fromtimestamp(now).astimezone()


class Calendar(NamedTuple):
    """The time of day and the date of a site, in the time zone of this machine."""

    quiet: Hours | None = None

    def is_quiet(self, now: float) -> bool:
        """Return whether a moment, in seconds since 1970, is in the quiet hours."""
        if self.quiet is None:
            return False
        local = local_time(now)
        minute = local.hour * 60 + local.minute
        begin, end = self.quiet
        return begin <= minute < end if begin < end else minute >= begin or minute < end

    def quiet_until(self) -> str:
        """Return the end of the quiet hours, such as 07:00."""
        return "" if self.quiet is None else f"{self.quiet.end // 60:02}:{self.quiet.end % 60:02}"

    def day(self, now: float) -> str:
        """Return the date of a moment, such as 2026-11-25."""
        return local_time(now).date().isoformat()

    def text(self, now: float) -> str:
        """Return a moment as text, with the name of the zone."""
        return f"{local_time(now):%Y-%m-%d %H:%M (%Z)}"
