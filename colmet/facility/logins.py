"""Logged-in users, from the output of `who` and `last`."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from colmet.batch import answers
from colmet.common.errors import CommandFailed
from colmet.facility.deadlines import SourceFailed
from colmet.node.system.command import Command

log = logging.getLogger(__name__)

WHO = ("who",)
LAST = ("/usr/bin/last", "-w", "-s", "-5min")
LAST_TAIL = 2  # lines: an empty one, and the start of the file
_NO_USER = re.compile(r"(?:reboot|shutdown) +system |runlevel +\(to ")  # lines of `last` other than logins


def parse(text: str) -> list[str]:
    """Return the first words of the lines, each once, in their order."""
    return list(dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip()))


def parse_last(text: str, only_users: bool = True) -> list[str]:
    """Return the same for the output of `last`; `only_users` drops its "reboot" and similar entries."""
    lines = text.splitlines()[:-LAST_TAIL]
    return parse("\n".join([line for line in lines if not (only_users and _NO_USER.match(line))]))


class Logins:
    """Client of `who`, and of `last` for the last five minutes.

    Args:
        history: run `last`, too.
        deadline_s: timeout of each command in seconds.
        each_once: list a user once; else, as in afmetrics_collector, again for `last`.
        who: command line for logged-in users.
        last: command line for past logins.

    Attributes:
        failures: missing answers of `last`.
    """

    def __init__(
        self,
        history: bool,
        deadline_s: float,
        each_once: bool = True,
        who: Sequence[str] = WHO,
        last: Sequence[str] = LAST,
    ) -> None:
        self._each_once = each_once
        self._who = Command(who, deadline_s)
        self._last = Command(last, deadline_s) if history else None
        self.failures = 0

    def users(self) -> list[str]:
        """Return the logged-in users, then those of the last five minutes.

        Raises:
            SourceFailed: `who` does not answer. A failure of `last` alone is logged and counted.
        """
        try:
            users = parse(answers.run(self._who).decode("utf-8", "replace"))
        except CommandFailed as err:
            raise SourceFailed(f"{err}; the users that are logged in are not known") from err
        if self._last is not None:
            try:
                users += parse_last(answers.run(self._last).decode("utf-8", "replace"), self._each_once)
            except CommandFailed as err:
                self.failures += 1
                log.error("logins of the last five minutes are missing: %s; is this a `last` that knows -s?", err)
        return list(dict.fromkeys(users)) if self._each_once else users
