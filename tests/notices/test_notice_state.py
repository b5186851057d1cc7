"""What earlier runs have seen and sent."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter

import pytest

from colmet.notices import rules, state
from colmet.notices.state import FAILED, SENT, Key, State, StateError
from tests.support.notice_jobs import HOUR, NOW, job

KEY = Key(42, NOW - HOUR, "idle", "mail user")


def row(number=42, start=NOW - HOUR, last=NOW, **values):
    made = dict.fromkeys(rules.COLUMNS) | job(number, start=start, **values)
    return {**made, "last": last, "end": last}


def readings(opened):
    return [tuple(one) for one in opened._database.execute("SELECT job, start, time FROM readings ORDER BY time")]


def test_a_notice_is_open_until_it_is_sent(tmp_path):
    with State(str(tmp_path / "deep/s.sqlite"), True, NOW) as opened:
        assert opened.is_open(KEY)
        opened.tried([KEY])
        assert opened.is_open(KEY)
        opened.settle([KEY], SENT)
        assert not opened.is_open(KEY) and opened.is_open(KEY._replace(target="mail administrators"))
        assert opened.is_open(KEY._replace(start=NOW)), "the next job with this number"
    assert os.stat(tmp_path / "deep/s.sqlite").st_mode & 0o777 == 0o600
    with State(str(tmp_path / "deep/s.sqlite"), True, NOW) as opened:
        assert not opened.is_open(KEY)


def test_a_notice_whose_runs_were_killed_is_repeated_once_and_one_that_failed_again_and_again(tmp_path):
    path = str(tmp_path / "s.sqlite")
    for expected in (0, 0, 1, 0):
        with State(path, True, NOW) as opened:
            assert opened.give_up() == expected
            if opened.is_open(KEY):
                opened.tried([KEY])  # and killed
    with State(path, True, NOW) as opened:
        assert not opened.is_open(KEY)
        other = KEY._replace(job=43)
        for _ in range(10):
            opened.tried([other])
            opened.settle([other], FAILED)
            assert opened.give_up() == 0 and opened.is_open(other)


def test_readings_are_kept_as_long_as_a_rule_looks_back_and_one_before(tmp_path):
    with State(str(tmp_path / "s.sqlite"), True, NOW) as opened:
        for age in range(0, 10 * HOUR, 60):
            seen = row(start=NOW, last=NOW + age, cpu_s=float(age))
            opened.note([seen], [seen], HOUR)
        kept = [time - NOW for _, _, time in readings(opened)]
        end = 10 * HOUR - 60
        assert len(kept) <= state.STEPS + 2 and kept[0] <= end - HOUR < kept[1]
        found = opened.earlier(42, NOW, NOW + end - HOUR)
        assert found.totals[0] == found.time - NOW and end - HOUR - 150 <= found.time - NOW <= end - HOUR
        assert opened.earlier(42, NOW, NOW + kept[0] - 1) is None and opened.earlier(1, NOW, NOW * 2) is None


def test_jobs_that_were_not_seen_for_long_are_forgotten(tmp_path):
    path = str(tmp_path / "s.sqlite")
    with State(path, True, NOW) as opened:
        opened.note([row()], [row()], HOUR)
        opened.settle([KEY], SENT)
    with State(path, True, NOW + 2 * HOUR) as opened:
        opened.note([], [], HOUR)
        assert readings(opened) == [] and not opened.is_open(KEY)
    with State(path, True, NOW + state.KEPT_S + 1) as opened:
        opened.note([], [], HOUR)
        assert opened.is_open(KEY)
        assert opened._database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


def test_the_number_of_jobs_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "MOST_JOBS", 5)
    some = [row(number) for number in range(1, 10)]
    with State(str(tmp_path / "s.sqlite"), True, NOW) as opened:
        opened.note(some, some, HOUR)
        assert opened._database.execute("SELECT count(*) FROM jobs").fetchone() == (5,)
        assert len(readings(opened)) == 5


def test_a_job_whose_start_changes_as_rows_of_more_hosts_come_keeps_its_notices(tmp_path):
    with State(str(tmp_path / "s.sqlite"), True, NOW) as opened:
        opened.note([row()], [row()], HOUR)
        opened.settle([KEY], SENT)
        moved = row(start=NOW - HOUR - 20)
        opened.note([moved], [moved], HOUR)
        assert not opened.is_open(KEY._replace(start=NOW - HOUR - 20)) and opened.is_open(KEY)
        again = row(start=NOW + HOUR, last=NOW + 2 * HOUR)  # another job with this number
        opened.note([again], [again], HOUR)
        assert opened.is_open(KEY._replace(start=NOW + HOUR))


def test_a_dry_run_reads_the_state_and_changes_nothing(tmp_path):
    path = str(tmp_path / "s.sqlite")
    with State(path, False, NOW) as opened:
        assert opened.since is None
        opened.note([row()], [row()], HOUR)
    assert not os.path.exists(path)
    with State(path, True, NOW) as opened:
        opened.settle([KEY], SENT)
        opened.add(Counter(sent=2))
        opened.add(Counter(sent=1, held=4))
    before = (tmp_path / "s.sqlite").read_bytes()
    with State(path, False, NOW + 5) as opened:
        assert not opened.is_open(KEY)
        opened.note([row()], [row()], HOUR)
        assert opened.counts() == {"since": NOW, "sent": 3, "held": 4}
    assert (tmp_path / "s.sqlite").read_bytes() == before


def test_two_runs_at_once_a_damaged_file_and_one_of_a_later_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "BUSY_S", 0.05)
    path = str(tmp_path / "s.sqlite")
    with State(path, True, NOW), pytest.raises(StateError, match="another run of colmet notices uses it"):
        State(path, True, NOW)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StateError, match=r"of a later Colmet \(form 99"):
        State(path, True, NOW)
    (tmp_path / "s.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(StateError, match="not a database"):
        State(path, True, NOW)
    (tmp_path / "dir").mkdir()
    with pytest.raises(StateError, match="Is a directory"):
        State(str(tmp_path / "dir"), True, NOW)
