"""Send notices on jobs that waste what they hold or fail soon: by mail, to a webhook or to a command.

The rules, recipients and ways are those of a configuration file; without rules in it, notices are off. A timer of
systemd, colmet-notices.timer, runs this every 5 minutes. Each notice is sent once.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from colmet.commands import archives
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.host.capabilities import become_owner
from colmet.common.text import utc
from colmet.jobs.archive.queries import MAX_ROWS, MAX_VALUES, ArchivedJob, JobArchive, JobFilter, Row
from colmet.jobs.columns import RUNNING
from colmet.jobs.figures import Report
from colmet.jobs.summary_report import report_of
from colmet.notices import delivery
from colmet.notices.delivery import DeliveryFailed, DeliveryRefused, Letterhead, Mailer, Notice, plain
from colmet.notices.options import DEFAULT_PATH, STATE_DIRECTORY, NoticeSettings, address
from colmet.notices.rules import ADMINISTRATORS, COLUMNS, FAILURES, LONGEST_S, RULES, USER, Case, Rule, is_judged
from colmet.notices.state import FAILED, REFUSED, SENT, SUPPRESSED, UNADDRESSED, UNCERTAIN, Key, State


def add_options(parser: cli.Parser) -> None:
    """Declare the file, the dry run and the archive."""
    parser.epilog = """\
examples:
  colmet notices --dry-run
  colmet notices --test-mail me@site.org
  systemctl enable --now colmet-notices.timer

exit status:
  0  done, also without any notice
  1  a notice could not be sent, or the archive or the state cannot be used; the next run retries
  2  wrong command line or configuration"""
    parser.add_argument(
        "--rules", metavar="FILE", help=f"the rules and recipients of this site, in TOML (default: {DEFAULT_PATH})"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print each notice and its recipients, send and note nothing; without a file, or without rules in it, "
        "of all rules",
    )
    parser.add_argument(
        "--test-mail", metavar="ADDRESS", type=address, help="send a test mail to this address, and exit"
    )
    archives.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Send, or print, the notices of this moment; return 1 if one could not be sent."""
    if options.dry_run and options.test_mail:
        raise ConfigError("--dry-run and --test-mail: choose one")
    settings = NoticeSettings(options.rules, options.dry_run or options.test_mail is not None)
    now = time.time()
    if options.test_mail:
        return _test_mail(settings, options.test_mail, now)
    path = os.path.join(os.environ.get("STATE_DIRECTORY") or STATE_DIRECTORY, "notices.sqlite")
    if not options.dry_run:
        become_owner(path)
    with archives.open_archive(options) as archive, State(path, not options.dry_run, now) as state:
        round_ = Round(settings, archive, state, now)
        notices = round_.notices()
        if options.dry_run:
            print("\n".join(round_.show(notices)) or "no notices")
            counts = state.counts()
            since = counts.pop("since", None)
            if since is not None:
                print(f"since {utc(since)} UTC: {_text_of(counts) or 'none'}")
            return 0
        failures = round_.deliver(notices)
        state.add(round_.counts)
    for text in dict.fromkeys(failures):
        print(f"colmet notices: {text}", file=sys.stderr)
    if round_.counts:
        print(f"notices: {_text_of(round_.counts)}")
    return 1 if failures else 0


def _text_of(counts: Mapping[str, int]) -> str:
    return ", ".join([f"{number} {name}" for name, number in sorted(counts.items())])


def _test_mail(settings: NoticeSettings, recipient: str, now: float) -> int:
    if settings.server is None:
        raise ConfigError(f"{settings.path}: no mail-server")
    given = settings.options
    head = Letterhead(given.mail_from, settings.calendar, given.cluster, given.contact)
    text = f"This mail was sent by colmet notices --test-mail, at {settings.calendar.text(now)}.\n"
    with closing(Mailer(settings.server)) as mailer:
        mailer.send(head.message([recipient], "test mail", text, now, f"test.{int(now)}"), head.sender, [recipient])
    print(f"sent to {recipient} by {settings.server.host}:{settings.server.port}")
    return 0


log = logging.getLogger(__name__)

ENDED_S = 86400  # a job that ended earlier gets no notice
MAILS_A_DAY = 10  # most mails to one recipient
MAIL_S = 150.0  # after which a run begins no more mails
MOST_LINE = 1000  # characters of a line of a dry run
MAIL, WEBHOOK, COMMAND = "mail", "webhook", "command"  # ways of delivery


class NoticeTarget(NamedTuple):
    """A recipient of a notice, by one way."""

    way: str  # MAIL, WEBHOOK or COMMAND
    audience: str  # of a mail: USER or ADMINISTRATORS
    user: str  # of a mail to the user
    key: Key


class Round:
    """One run, at a time in seconds since 1970; `counts` has its notices by what has become of them."""

    def __init__(self, settings: NoticeSettings, archive: JobArchive, state: State, now: float) -> None:
        self._settings, self._archive, self._state, self._now = settings, archive, state, now
        self.counts: Counter[str] = Counter()

    # -- the rules --

    def notices(self) -> list[Notice]:
        """Return the notices that are still to be sent, and note the jobs and their totals."""
        running = [row for row in self._listed(JobFilter(states=[RUNNING])) if is_judged(row, self._now)]
        since = max(self._now - ENDED_S, self._state.since or 0)
        ended = [
            row
            for row in self._listed(JobFilter(states=FAILURES, since=since))
            if not row["is_running"] and float(row.get("ended") or row["end"] or row["start"]) >= since
        ]
        self._state.note([*running, *ended], running, LONGEST_S)
        given_up = self._state.give_up()
        if given_up:
            self.counts[UNCERTAIN] += given_up
            log.warning("it is unknown whether notices were sent, as runs were killed: notices=%d", given_up)
        ignored = set(self._settings.options.ignore_queues)
        found: list[Notice] = []
        for rows, is_of_ended in ((running, False), (ended, True)):
            for row in rows:
                if row.get("queue") not in ignored:
                    found += self._of_job(row, [rule for rule in RULES.values() if rule.is_of_ended == is_of_ended])
        return found

    def _listed(self, where: JobFilter) -> Iterator[Row]:
        """Yield all jobs that fulfil a condition, the oldest first: new ones do not move the pages."""
        offset = 0
        while True:
            page = self._archive.jobs(where, COLUMNS, descending=False, offset=offset, limit=MAX_ROWS)
            yield from [row for row in page.rows if row["job"] is not None and row["start"] is not None]
            offset += len(page.rows)
            if not page.rows or offset >= page.total:
                return

    def _of_job(self, row: Row, rules: Sequence[Rule]) -> Iterator[Notice]:
        case = self._case(row)
        wants = bool(row["user"]) and row["user"] not in self._settings.options.no_notices
        for rule in rules:
            audiences = {USER} if rule.name in self._settings.user_rules and wants else set()
            audiences |= {ADMINISTRATORS} if rule.name in self._settings.administrator_rules else set()
            notice = Notice(row, rule, "", frozenset(audiences))
            if self._settings.has_ways and not any(self._state.is_open(one.key) for one in self._targets(notice)):
                continue
            text = rule.text(case)
            if text is None:
                continue
            if USER in audiences and rule.only_administrators(case):
                audiences -= {USER}
            if audiences:
                yield notice._replace(text=text, audiences=frozenset(audiences))

    def _case(self, row: Row) -> Case:
        job, start = int(row["job"]), int(row["start"])

        @functools.cache
        def of_archive() -> ArchivedJob | None:
            return self._archive.job(job, start)

        def report() -> Report | None:
            found = of_archive()
            return None if found is None else report_of(found.summary, found.hosts)

        def is_shared() -> bool:
            found = of_archive()
            hosts = [] if found is None else sorted({str(host["host"]) for host in found.hosts})[:MAX_VALUES]
            others = JobFilter(hosts=hosts, states=[RUNNING])
            return bool(hosts) and self._archive.jobs(others, ["job"], limit=1).total > 1

        return Case(row, lambda time: self._state.earlier(job, start, time), report, is_shared)

    # -- the ways --

    def _targets(self, notice: Notice) -> Iterator[NoticeTarget]:
        options = self._settings.options
        if options.mail_server:
            if USER in notice.audiences and self._settings.find is not None:
                yield NoticeTarget(MAIL, USER, notice.user, notice.key(f"{MAIL} {USER}"))
            if ADMINISTRATORS in notice.audiences and options.administrators:
                yield NoticeTarget(MAIL, ADMINISTRATORS, "", notice.key(f"{MAIL} {ADMINISTRATORS}"))
        for way, given in ((WEBHOOK, options.webhook), (COMMAND, options.command)):
            if given and notice.audiences:
                yield NoticeTarget(way, "", "", notice.key(way))

    def _open(self, way: str, notices: Sequence[Notice]) -> dict[tuple[str, str], list[Notice]]:
        """Return the notices for one way that are still to be sent, by audience and user."""
        found: dict[tuple[str, str], list[Notice]] = {}
        for notice in notices:
            for target in self._targets(notice):
                if target.way == way and self._state.is_open(target.key):
                    found.setdefault((target.audience, target.user), []).append(notice)
        return found

    def show(self, notices: Sequence[Notice]) -> Iterator[str]:
        """Yield each notice with its recipients, for a dry run."""
        calendar = self._settings.calendar
        held = f", held until {calendar.quiet_until()}" if calendar.is_quiet(self._now) else ""
        for notice in notices:
            targets = []
            for target in self._targets(notice):
                if self._state.is_open(target.key):
                    addresses = " ".join(self._recipients(target.audience, target.user))
                    by_mail = f"{target.audience} <{addresses}>" if addresses else f"{target.audience} (no address)"
                    targets.append(by_mail if target.way == MAIL else target.way)
            targets = targets or [f"{one} (no way to send)" for one in notice.audiences]
            head = f"job {notice.number} of {notice.user or '-'}: {notice.rule.name}, to {', '.join(sorted(targets))}"
            yield f"{plain(head, MOST_LINE)}{held}\n    {notice.text}"

    def deliver(self, notices: Sequence[Notice]) -> list[str]:
        """Send notices; return the failures. In quiet hours nothing is sent: what still holds is sent after them."""
        if self._settings.calendar.is_quiet(self._now):
            self.counts.update({"held": len(notices)} if notices else {})
            return []
        failures = self._mail(notices)
        options = self._settings.options
        if options.webhook:
            secret = self._settings.webhook_secret
            failures += self._program(WEBHOOK, notices, lambda body: delivery.post(options.webhook, body, secret))
        if options.command:
            failures += self._program(COMMAND, notices, lambda body: delivery.run(options.command, body))
        return failures

    def _settle(self, keys: Sequence[Key], status: str) -> None:
        self._state.settle(keys, status)
        self.counts[status] += len(keys)

    def _program(self, way: str, notices: Sequence[Notice], send: Callable[[bytes], None]) -> list[str]:
        waiting = [one for some in self._open(way, notices).values() for one in some]
        for at in range(0, len(waiting), delivery.MOST_NOTICES):
            some = waiting[at : at + delivery.MOST_NOTICES]
            keys = [one.key(way) for one in some]
            self._state.tried(keys)
            try:
                send(delivery.document(some, self._settings.options.cluster, self._now))
            except DeliveryFailed as err:
                self._settle(keys, FAILED)
                return [str(err)]
            self._settle(keys, SENT)
        return []

    def _mail(self, notices: Sequence[Notice]) -> list[str]:
        options, server = self._settings.options, self._settings.server
        if server is None:
            return []
        failures = []
        head = Letterhead(options.mail_from, self._settings.calendar, options.cluster, options.contact)
        until = time.monotonic() + MAIL_S
        with closing(Mailer(server)) as mailer:
            for (audience, user), some in self._open(MAIL, notices).items():
                keys = [one.key(f"{MAIL} {audience}") for one in some]
                if time.monotonic() > until:
                    failures.append(f"mails need more than {MAIL_S:g} s; the next run sends the others")
                    self._settle(keys, FAILED)
                elif not self._recipients(audience, user):
                    log.warning("no address of a user, no notice sent: user=%s notices=%d", plain(user), len(some))
                    self._settle(keys, UNADDRESSED)
                elif why := self._send(mailer, head, audience, user, some):
                    failures.append(why)
        return failures

    def _recipients(self, audience: str, user: str) -> list[str]:
        if audience == ADMINISTRATORS:
            return list(self._settings.options.administrators)
        found = self._settings.find(user) if self._settings.find else None
        return [found] if found else []

    def _send(self, mailer: Mailer, head: Letterhead, audience: str, user: str, notices: list[Notice]) -> str:
        """Send one mail, unless its recipient had too many; return why it failed, else an empty string."""
        state, limit = self._state, MAILS_A_DAY
        recipient, day = f"{audience} {user}", self._settings.calendar.day(self._now)
        free = limit - state.mails(recipient, day)
        # one user may cause as many mails to administrators as are left for the jobs of others
        causes = {one.user: f"{audience} on {one.user}" for one in notices} if audience == ADMINISTRATORS else {}
        spent = {name for name, cause in causes.items() if state.mails(cause, day) >= free}
        beyond = [one.key(f"{MAIL} {audience}") for one in notices if free <= 0 or one.user in spent]
        if beyond:
            state.suppress(recipient, day, len(beyond))
            self._settle(beyond, SUPPRESSED)
        notices = [one for one in notices if free > 0 and one.user not in spent]
        if not notices:
            return ""
        keys = [one.key(f"{MAIL} {audience}") for one in notices]
        addresses = self._recipients(audience, user)
        mail = head.digest(addresses, notices, audience == USER, self._now, state.suppressed(recipient), limit)
        state.tried(keys)
        try:
            refused = mailer.send(mail, head.sender, addresses)
        except (DeliveryFailed, DeliveryRefused) as err:
            self._settle(keys, FAILED if isinstance(err, DeliveryFailed) else REFUSED)
            return str(err)
        if refused:
            log.warning("the mail server refuses some addresses: addresses=%s", ",".join(refused))
        state.mailed(recipient, day)
        for name in {one.user for one in notices} & causes.keys():
            state.mailed(causes[name], day)
        self._settle(keys, SENT)
        return ""
