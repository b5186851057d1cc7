"""Logged-in users, from the output of `who` and `last`."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence

from colmet.batch import answers
from colmet.common.errors import CommandFailed, ParseError
from colmet.common.host.command import Command
from colmet.facility.deadlines import SourceFailed

log = logging.getLogger(__name__)

WHO = ("who",)
LAST = ("/usr/bin/last", "-w", "-s")  # then a time; wtmpdb's `last` knows no relative one
LAST_S = 300
# Lines of `last` other than logins: of the machine, such as "soft-reboot system boot", and the start of the file.
_NO_USER = re.compile(r"\S+ +system (?:boot|down)\b|runlevel +\(to ")
_TAIL = re.compile(r"\S+ (?:begins .+|has no entries)")


def parse(text: str) -> list[str]:
    """Return the users in the output of `who`, the first words of its lines, each once, in their order.

    Raises:
        ValueError: a line has another form: a user, a terminal, and more; the text is this line.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if len(line.split()) < 2:
            raise ValueError(line)
    return list(dict.fromkeys(line.split()[0] for line in lines))


def parse_last(text: str, only_users: bool = True) -> list[str]:
    """Return the same for the output of `last`; `only_users` drops its "reboot" and similar entries."""
    *lines, tail = text.rstrip().split("\n")
    if not _TAIL.match(tail):
        raise ValueError(tail)
    return parse("\n".join([line for line in lines if not (only_users and _NO_USER.match(line))]))


class Logins:
    """Client of `who`, and of `last` for the last five minutes.

    Args:
        history: run `last`, too.
        deadline_s: timeout of each command in seconds.
        each_once: list a user once; else, as in afmetrics_collector, again for `last`.
        who: command line for logged-in users.
        last: command line for past logins, without the time that it begins at.

    Attributes:
        failures: missing or unreadable answers of `last`.
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
        self._since = len(last)  # place of the time on the command line
        self._last = Command([*last, ""], deadline_s) if history else None
        self.failures = 0

    def users(self) -> list[str]:
        """Return the logged-in users, then those of the last five minutes.

        Raises:
            SourceFailed: `who` does not answer, or in another form. A failure of `last` alone is logged and counted.
        """
        try:
            users = _parsed(self._who, parse)
        except (CommandFailed, ParseError) as err:
            raise SourceFailed(f"{err}; the users that are logged in are not known") from err
        if self._last is not None:
            self._last.argv[self._since] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - LAST_S))
            try:
                users += _parsed(self._last, lambda text: parse_last(text, self._each_once))
            except (CommandFailed, ParseError) as err:
                self.failures += 1
                log.error("logins of the last five minutes are missing: %s", err)
        return list(dict.fromkeys(users)) if self._each_once else users


def _parsed(command: Command, parse_text: Callable[[str], list[str]]) -> list[str]:
    text = answers.run(command).decode("utf-8", "replace")
    try:
        return parse_text(text)
    except ValueError as err:
        raise ParseError(str(command), str(err)) from err
