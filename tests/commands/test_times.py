"""Times as people type them, also where summer time begins and ends."""

from __future__ import annotations

import argparse
import time
from datetime import datetime, timezone

import pytest

from colmet.commands import selection
from colmet.commands.times import moment
from colmet.common import text as quantities
from colmet.common.config import cli
from colmet.common.text import Clock

NOON = 1_795_262_400  # 2026-11-21 12:00 UTC, a Saturday; 13:00 in Paris


@pytest.fixture(autouse=True)
def paris(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # needs no time zone files
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc(text, now=NOON):
    return datetime.fromtimestamp(moment(text, now), timezone.utc).strftime("%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1795262400", "11-21 12:00:00"),
        ("2h", "11-21 10:00:00"),
        ("-90min", "11-21 10:30:00"),
        ("1h30m", "11-21 10:30:00"),
        ("1.5 hours ago", "11-21 10:30:00"),
        ("3 days ago", "11-18 12:00:00"),
        ("today", "11-20 23:00:00"),
        ("yesterday", "11-19 23:00:00"),
        ("yesterday 20:33", "11-20 19:33:00"),
        ("today  08:00:30", "11-21 07:00:30"),
        ("13:00", "11-21 12:00:00"),
        ("13:01", "11-20 12:01:00"),
        ("2026-11-21", "11-20 23:00:00"),
        ("2026-11-21T12:00:00", "11-21 11:00:00"),
        ("2026-11-21T12:00:00Z", "11-21 12:00:00"),
        ("2026-11-21T12:00:00+05:30", "11-21 06:30:00"),
    ],
)
def test_a_time_is_that_of_the_local_clock_unless_it_says_otherwise(text, expected):
    assert utc(text) == expected


# On 2026-10-25 the clock goes from 03:00 back to 02:00, on 2026-03-29 from 02:00 on to 03:00.
AUTUMN = 1_792_929_600  # 2026-10-25 12:00 UTC
SPRING = 1_774_785_600  # 2026-03-29 12:00 UTC


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("02:30", AUTUMN, "10-25 00:30:00"),  # twice: the first
        ("03:30", AUTUMN, "10-25 02:30:00"),
        ("today", AUTUMN + 86400, "10-25 23:00:00"),
        ("yesterday", AUTUMN + 86400, "10-24 22:00:00"),  # a day of 25 hours
        ("yesterday 12:00", AUTUMN + 86400, "10-25 11:00:00"),
        ("02:30", AUTUMN - 12 * 3600 + 1800 + 60, "10-25 00:30:00"),  # a minute after the first
        ("02:30", SPRING, "03-29 01:30:00"),  # never: an hour later, 03:30
        ("03:30", SPRING, "03-29 01:30:00"),
        ("yesterday", SPRING + 86400, "03-28 23:00:00"),  # a day of 23 hours
        ("2026-10-25T02:30:00+01:00", AUTUMN, "10-25 01:30:00"),
    ],
)
def test_summer_time_begins_and_ends(text, now, expected):
    assert utc(text, now) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-", "ago", "5 apples", "1M", "2h junk", "h2", "25:00", "12:60", "today 7", "tomorrow"),
        *("2026-13-01", "2026-02-30", "1e5", "0x10", "nan", "99999999999999", "99999w", "\u0661\u0662", "12:00Z"),
        *("1h" * 10_000 + "!", "9" * 10_000),
    ],
)
def test_what_is_no_time_is_refused_with_examples(text):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        moment(text, NOON)
    assert "yesterday" in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize("seconds", [1 << 62, -(1 << 63)])
def test_impossible_times_are_shown_as_numbers(seconds):
    assert quantities.utc(NOON) == "2026-11-21 12:00:00"
    assert quantities.utc(seconds) == f"{seconds} s since 1970"


def test_times_are_shown_as_they_are_typed_with_the_date_and_the_zone_once():
    local, there = Clock(), Clock(True)
    assert local.text(NOON) == "2026-11-21 13:00:00" and there.text(NOON) == "2026-11-21 12:00:00"
    assert moment(local.text(NOON)) == NOON == moment(f"{there.text(NOON)}Z")
    assert local.interval(NOON, NOON + 60) == "2026-11-21 13:00:00 to 13:01:00 CET"
    assert there.interval(NOON, NOON + 86400) == "2026-11-21 12:00:00 to 2026-11-22 12:00:00 UTC"
    assert local.interval(SPRING - 86400, SPRING).endswith(" CET/CEST"), "summer time begins in between"
    assert "1970" in local.text(1e30) and local.zone(1e30) == "local time", "a damaged file may have any value"
    assert there.zone(1e30) == "UTC"


def test_a_time_before_now_may_begin_with_a_dash():
    parser = cli.Parser("colmet x")
    selection.add_interval(parser)
    options = parser.parse_args(["--since", "-1h", "--until", "1 hour ago"])
    assert abs(options.since - options.until) <= 1
