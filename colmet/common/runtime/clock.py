"""Times as people read them: ``2026-11-21 20:33:07`` in one time zone, which is named once."""

from __future__ import annotations

import time
from typing import NamedTuple

from colmet.common.runtime.quantities import utc


class Clock(NamedTuple):
    """The time zone of a screen."""

    is_utc: bool = False  # else that of this machine

    def text(self, seconds: float) -> str:
        """Return date and time of seconds since 1970."""
        if self.is_utc:
            return utc(seconds)
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        except (OSError, OverflowError, ValueError):  # a damaged file may have any value
            return f"{seconds} s since 1970"

    def zone(self, *times: float) -> str:
        """Return the name of the zone at some times: UTC, CET, or CET/CEST if that changes in between."""
        names = []
        for seconds in times or (time.time(),):
            try:
                names.append("UTC" if self.is_utc else time.strftime("%Z", time.localtime(seconds)))
            except (OSError, OverflowError, ValueError):
                continue
        return "/".join(dict.fromkeys(names)) or "local time"

    def interval(self, first: float, last: float, named: bool = True) -> str:
        """Return an interval, with the zone if `named`; the date once, if it is that of both ends."""
        begin, end = self.text(first), self.text(last)
        if begin[:10] == end[:10]:
            end = end[11:]
        return f"{begin} to {end}" + (f" {self.zone(first, last)}" if named else "")


UTC = Clock(True)
