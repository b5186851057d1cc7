"""Simulated days of jobs, received by a real SMTP server: each rule once per job, none for jobs that ended."""

from __future__ import annotations

import collections
import re

import pytest

from colmet.commands import colmet
from colmet.notices.rules import RULES
from tests.support.archives import Archive
from tests.support.notice_jobs import MAIL, OPS, set_clock, settings
from tests.support.notice_week import START, TICK_S, due, jobs_of, records_of
from tests.support.smtp_server import SmtpServer

JOIN = """UPDATE jobs SET state = ?, owner = user, ended = ?, started = start, exit_code = ?, system = 'slurm'
WHERE job = ?"""
JOINED_S = 600  # from the end of a job to the batch system's answer
HEAD = re.compile(r"^Job (\d+) .*?\(rule ([a-z-]+);", re.M | re.S)


def sent_by(server):
    """(user or None, job, rule, time) of each notice in the mails of a server."""
    found = []
    for one in server.mails:
        (recipient,) = one.recipients
        user = None if recipient == OPS else recipient.partition("@")[0]
        when = int(one.mail["Date"].datetime.timestamp())
        found += [(user, int(job), rule, when) for job, rule in HEAD.findall(one.text)]
    return found


def simulate(tmp_path, monkeypatch, server, jobs, until, tick_s):
    """Fold what the nodes send, and run the command at each tick; return the exit statuses."""
    path = settings(tmp_path / "notices.toml", **{**MAIL, "mail_server": f"127.0.0.1:{server.port}"})
    archive = Archive(tmp_path / "a.archive.sqlite")
    records = collections.deque(records_of(jobs))
    ends = collections.deque(sorted(jobs, key=lambda job: job.end))
    statuses = []
    for now in range(START + 137, until, tick_s):
        some = []
        while records and records[0].received_ns <= now * 10**9:
            some.append(records.popleft())
        archive.take(some)
        while ends and ends[0].end + JOINED_S < now:
            job = ends.popleft()
            failed = job.does.state == "failed"
            archive.store.database.execute(JOIN, (job.does.state, job.end, int(failed), job.number))
        set_clock(monkeypatch, now)
        words = ["--archive", str(tmp_path / "a.archive.sqlite"), "--rules", path]
        statuses.append(colmet.main(["notices", *words]))
    archive.store.close()
    return statuses


def check(sent, jobs, until):
    """Each rule once per job and recipient, none for a job that ended, none that does not apply, none missing."""
    known = {job.number: job for job in jobs}
    assert [one for one, count in collections.Counter([one[:3] for one in sent]).items() if count > 1] == []
    for user, number, rule, when in sent:
        job = known[number]
        assert rule in job.does.rules, (job, rule)
        assert user in (None, job.user)
        if rule == "failed-early":
            assert job.end < when
        else:
            assert job.start + job.does.holds_after <= when < job.end, (job, rule, when)
    wanted = {(job, rule): is_due for job in jobs for rule, is_due in due(job, lambda _: False, until).items()}
    for is_operator in (True, False):
        found = {(number, rule) for user, number, rule, _ in sent if (user is None) == is_operator}
        assert [one for one, is_due in wanted.items() if is_due and (one[0].number, one[1]) not in found] == []
    assert len([one for one in wanted.values() if one is None]) <= 0.15 * len(wanted)
    return wanted


@pytest.mark.slow
@pytest.mark.endurance
def test_three_days_of_75_jobs_have_each_notice_once_and_none_for_ended_jobs(tmp_path, monkeypatch, zone):
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    monkeypatch.setattr("colmet.notices.command.MAILS_A_DAY", 1000)
    jobs = jobs_of(75, 15, 2.5)
    until = START + 3 * 86400
    with SmtpServer(tmp_path) as server:
        statuses = simulate(tmp_path, monkeypatch, server, jobs, until, 2 * TICK_S)
        sent = sent_by(server)
        mails = len(server.mails)
    assert set(statuses) == {0}
    assert max(job.end for job in jobs) < until
    wanted = check(sent, jobs, until)
    print(f"{len(jobs)} jobs, {len(statuses)} runs, {len(wanted)} wanted, {len(sent)} notices in {mails} mails")
    assert {rule for _, rule in wanted} == set(RULES)
