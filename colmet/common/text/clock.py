"""Times as people read them: ``2026-11-21 20:33:07`` in one time zone, which is named once."""

from __future__ import annotations

import time
from datetime import datetime, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from colmet.common.text.quantities import utc


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
