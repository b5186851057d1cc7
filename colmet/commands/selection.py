"""Options to select data, the same in all commands: the job, the user, the hosts and the interval, with its times."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from colmet.common.config import cli
from colmet.common.errors import ConfigError


def job_id(text: str) -> int:
    """Return the number of a job: an option type. 0 stands for the nodes themselves."""
    try:
        return cli.whole_number(0, (1 << 63) - 1)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not the number of a job") from None


def add_job(parser: cli.Options, help_text: str) -> None:
    """Declare -j and --job."""
    parser.add_argument("-j", "--job", metavar="JOB", type=job_id, help=help_text)


def job_of(options: argparse.Namespace, words: list[str]) -> int:
    """Return the job of --job, else remove and return the first of a command's words."""
    if options.job is not None:
        return int(options.job)
    if not words:
        raise ConfigError("no job is named; give JOB or --job JOB")
    try:
        return job_id(words.pop(0))
    except argparse.ArgumentTypeError as err:
        raise ConfigError(f"{err}; give JOB or --job JOB") from err


def add_user(parser: cli.Options, help_text: str, convert: Callable[[str], str] = str) -> None:
    """Declare -u and --user."""
    parser.add_argument("-u", "--user", metavar="USER", type=convert, default="", help=help_text)


def add_interval(parser: cli.Options) -> None:
    """Declare --since and --until."""
    parser.add_argument("--since", metavar="TIME", type=moment, help=f"only rows from this time on: {FORMS}")
    parser.add_argument("--until", metavar="TIME", type=moment, help="only rows up to this time")


def add_hosts(parser: cli.Options) -> None:
    """Declare --host."""
    parser.add_argument("--host", metavar="HOST", action="append", help="only this host; repeatable")


def check_interval(options: argparse.Namespace) -> None:
    """Refuse an interval with its end before its start."""
    if options.since is not None and options.until is not None and options.since > options.until:
        raise ConfigError("--since is later than --until")


FORMS = (
    "2h, yesterday, 20:33, 2026-11-21T12:00:00; also '30 min ago', 'yesterday 20:33', 2026-11-21, or "
    "seconds since 1970; local time unless it ends in Z or an offset such as +01:00"
)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **{"d": 86400, "day": 86400, "days": 86400, "w": 604800, "week": 604800, "weeks": 604800},
}
_AGO = re.compile(r"-?((?:\d{1,9}(?:\.\d{1,3})? ?[a-z]+ ?)+?)( ago)?", re.ASCII)
_PART = re.compile(r"([\d.]+) ?([a-z]+)", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_DAYS = {"today": 0, "yesterday": 1}


def moment(text: str, now: float | None = None) -> int:
    """Return a time given as text, in seconds since 1970: an option type.

    - ``1795262400``: seconds since 1970.
    - ``2h``, ``-90min``, ``1h30m``, ``3 days ago``: this duration before now; a day has 24 hours.
    - ``now``, ``today``, ``yesterday``: now, or the beginning of the day.
    - ``20:33``, ``20:33:07``: the latest such time of the clock; with a day (``yesterday 20:33``): on that day.
    - ``2026-11-21``, ``2026-11-21 20:33``, ``2026-11-21T20:33:07+01:00``, ``...Z``: a date of ISO 8601.

    An ambiguous time, at the end of summer time, is the first of the two; a skipped one is an hour later. `now` is the
    clock's by default.
    """
    now = time.time() if now is None else now
    try:
        found = int(_moment(" ".join(text.split()), now))
        if found < 0:
            raise ValueError(text)
    except (KeyError, ValueError, OverflowError, OSError):
        examples = "such as 2h, yesterday, 20:33 or 2026-11-21T12:00:00"
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not a time, {examples}") from None
    return found


def shown(time_s: int) -> str:
    """Return a time in UTC as text, readable by --since and --until."""
    try:
        return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if time_s else "?"
    except (OSError, OverflowError, ValueError):  # a damaged file may have any value
        return "?"


def _moment(text: str, now: float) -> float:
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return int(text)
    if text == "now":
        return now
    local = datetime.fromtimestamp(now)  # noqa: DTZ006 - the clock of this machine is meant
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    day, _, clock = text.partition(" ")
    if day in _DAYS:
        midnight -= timedelta(days=_DAYS[day])
        return (_at(midnight, clock) if clock else midnight).timestamp()
    if _CLOCK.fullmatch(text):
        of_today = _at(midnight, text).timestamp()
        return of_today if of_today <= now else _at(midnight - timedelta(days=1), text).timestamp()
    ago = _AGO.fullmatch(text)
    if ago:
        return now - sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(ago[1]))
    if text.endswith(("Z", "z")):  # Python's own does this since 3.11
        return datetime.fromisoformat(text[:-1].rstrip()).replace(tzinfo=timezone.utc).timestamp()
    return datetime.fromisoformat(text).timestamp()


def _at(midnight: datetime, clock: str) -> datetime:
    match = _CLOCK.fullmatch(clock)
    if match is None:
        raise ValueError(clock)
    return midnight.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0))
