"""The users that are logged in: what `who` and `last` print."""

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
LAST_TAIL = 2  # lines: an empty one, and since when the file goes
_NO_USER = re.compile(r"(?:reboot|shutdown) +system |runlevel +\(to ")  # lines of `last` that are no logins


def parse(text: str) -> list[str]:
    """The first words of the lines, each once, in their order."""
    return list(dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip()))


def parse_last(text: str, only_users: bool = True) -> list[str]:
    """Return the same of what `last` prints, without its last two lines.

    Args:
        text: its output.
        only_users: without "reboot" and its like, which `last` lists among the users.
    """
    lines = text.splitlines()[:-LAST_TAIL]
    return parse("\n".join([line for line in lines if not (only_users and _NO_USER.match(line))]))


def _said(command: Command) -> str:
    return answers.run(command).decode("utf-8", "replace")


class Logins:
    """Asks `who`, and `last` for the last five minutes.

    Args:
        history: ask `last`, too.
        deadline_s: seconds that each of them may take.
        each_once: list a user once; else those of `who` and then those of `last`, as afmetrics_collector does.
        who: the command line.
        last: the command line.

    Attributes:
        failures: answers of `last` that are missing.
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
        """Return the users that are logged in, then those that were within five minutes.

        Raises:
            SourceFailed: `who` does not answer. Where only `last` does not, that is logged and counted.
        """
        try:
            users = parse(_said(self._who))
        except CommandFailed as err:
            raise SourceFailed(f"{err}; the users that are logged in are not known") from err
        if self._last is not None:
            try:
                users += parse_last(_said(self._last), self._each_once)
            except CommandFailed as err:
                self.failures += 1
                log.error("logins of the last five minutes are missing: %s; is this a `last` that knows -s?", err)
        return list(dict.fromkeys(users)) if self._each_once else users
