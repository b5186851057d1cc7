"""Who is logged in: what `who` and `last` print."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from colmet.common.errors import CommandFailed
from colmet.node.command import Command
from colmet.tools.batch import answers
from colmet.tools.facility.deadlines import SourceFailed

log = logging.getLogger(__name__)

WHO = ("who",)
LAST = ("/usr/bin/last", "-w", "-s", "-5min")
LAST_TAIL = 2  # lines: an empty one, and since when the file goes


def parse(text: str) -> list[str]:
    """The first words of the lines, each once, in their order."""
    return list(dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip()))


def parse_last(text: str) -> list[str]:
    """The same of what `last` prints, without its last two lines; "reboot" and its like are among them."""
    return parse("\n".join(text.splitlines()[:-LAST_TAIL]))


def _said(command: Command) -> str:
    return answers.run(command).decode("utf-8", "replace")


class Logins:
    """Asks `who`, and `last` for the last five minutes.

    Args:
        history: ask `last`, too.
        deadline_s: seconds that each of them may take.
        who: the command line.
        last: the command line.

    Attributes:
        failures: answers of `last` that are missing.
    """

    def __init__(self, history: bool, deadline_s: float, who: Sequence[str] = WHO, last: Sequence[str] = LAST) -> None:
        self._who = Command(who, deadline_s)
        self._last = Command(last, deadline_s) if history else None
        self.failures = 0

    def users(self) -> list[str]:
        """Those who are logged in, then those who were within five minutes: who is both comes twice.

        Raises:
            SourceFailed: `who` does not answer. Where only `last` does not, that is logged and counted.
        """
        try:
            users = parse(_said(self._who))
        except CommandFailed as err:
            raise SourceFailed(f"{err}; who is logged in cannot be told") from err
        if self._last is not None:
            try:
                users += parse_last(_said(self._last))
            except CommandFailed as err:
                self.failures += 1
                log.error("logins of the last five minutes are missing: %s; is this a `last` that knows -s?", err)
        return users
