"""One run of notices: the jobs of the archive, the rules that hold, and their delivery."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from colmet.jobs.archive.queries import MAX_ROWS, MAX_VALUES, ArchivedJob, JobArchive, JobFilter, Row
from colmet.jobs.columns import RUNNING
from colmet.jobs.figures import Report
from colmet.jobs.summary_report import report_of
from colmet.notices import delivery
from colmet.notices.delivery import Mailer, MailFailed, MailRefused
from colmet.notices.letter import Letterhead, Notice, plain
from colmet.notices.options import NoticeSettings
from colmet.notices.rules import ADMINISTRATORS, COLUMNS, FAILURES, LONGEST_S, RULES, USER, Case, Rule, is_judged
from colmet.notices.state import FAILED, REFUSED, SENT, SUPPRESSED, UNADDRESSED, UNCERTAIN, Key, State

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
    """One run.

    Args:
        settings: of the site.
        archive: of jobs.
        state: of earlier runs.
        now: seconds since 1970.

    Attributes:
        counts: notices by what has become of them.
    """

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
            if not row["is_running"] and _end(row) >= since
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
        for rule in rules:
            audiences = {USER} if rule.name in self._settings.user_rules and self._wants(row) else set()
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

    def _wants(self, row: Row) -> bool:
        return bool(row["user"]) and row["user"] not in self._settings.options.no_notices

    def _case(self, row: Row) -> Case:
        job, start = int(row["job"]), int(row["start"])
        known: list[ArchivedJob | None] = []

        def of_archive() -> ArchivedJob | None:
            if not known:
                known.append(self._archive.job(job, start))
            return known[0]

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
        """Yield each way and recipient of a notice."""
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
            targets = [self._named(target) for target in self._targets(notice) if self._state.is_open(target.key)]
            targets = targets or [f"{one} (no way to send)" for one in notice.audiences]
            head = f"job {notice.number} of {notice.user or '-'}: {notice.rule.name}, to {', '.join(sorted(targets))}"
            yield f"{plain(head, MOST_LINE)}{held}\n    {notice.text}"

    def _named(self, target: NoticeTarget) -> str:
        if target.way != MAIL:
            return target.way
        addresses = self._recipients(target.audience, target.user)
        return f"{target.audience} <{' '.join(addresses)}>" if addresses else f"{target.audience} (no address)"

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
            except delivery.DeliveryFailed as err:
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
        with Mailer(server) as mailer:
            for (audience, user), some in self._open(MAIL, notices).items():
                keys = [one.key(f"{MAIL} {audience}") for one in some]
                if time.monotonic() > until:
                    failures.append(f"mails need more than {MAIL_S:g} s; the next run sends the others")
                    self._settle(keys, FAILED)
                    continue
                addresses = self._recipients(audience, user)
                if not addresses:
                    log.warning("no address of a user, no notice sent: user=%s notices=%d", plain(user), len(some))
                    self._settle(keys, UNADDRESSED)
                    continue
                why = self._send(mailer, head, audience, user, addresses, some, keys)
                failures += [why] if why else []
        return failures

    def _recipients(self, audience: str, user: str) -> list[str]:
        if audience == ADMINISTRATORS:
            return list(self._settings.options.administrators)
        found = self._settings.find(user) if self._settings.find else None
        return [found] if found else []

    def _send(
        self,
        mailer: Mailer,
        head: Letterhead,
        audience: str,
        user: str,
        addresses: list[str],
        notices: list[Notice],
        keys: list[Key],
    ) -> str:
        """Send one mail, unless its recipient had too many; return why it failed, else an empty string."""
        state, limit = self._state, MAILS_A_DAY
        recipient, day = f"{audience} {user}", self._settings.calendar.day(self._now)
        free = limit - state.mails(recipient, day)
        # one user may cause as many mails to administrators as are left for the jobs of others
        causes = {one.user: f"{audience} on {one.user}" for one in notices} if audience == ADMINISTRATORS else {}
        spent = {name for name, cause in causes.items() if state.mails(cause, day) >= free}
        beyond = [key for one, key in zip(notices, keys) if free <= 0 or one.user in spent]
        if beyond:
            state.suppress(recipient, day, len(beyond))
            self._settle(beyond, SUPPRESSED)
            notices = [one for one, key in zip(notices, keys) if key not in beyond]
            keys = [key for key in keys if key not in beyond]
        if not notices:
            return ""
        mail = head.digest(addresses, notices, audience == USER, self._now, state.suppressed(recipient), limit)
        state.tried(keys)
        try:
            refused = mailer.send(mail, head.sender, addresses)
        except MailFailed as err:
            self._settle(keys, FAILED)
            return str(err)
        except MailRefused as err:
            self._settle(keys, REFUSED)
            return str(err)
        if refused:
            log.warning("the mail server refuses some addresses: addresses=%s", ",".join(refused))
        state.mailed(recipient, day)
        for name in {one.user for one in notices} & causes.keys():
            state.mailed(causes[name], day)
        self._settle(keys, SENT)
        return ""


def _end(row: Row) -> float:
    return float(row.get("ended") or row["end"] or row["start"])
