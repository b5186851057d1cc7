"""Every exception that Colmet raises on purpose.

Who raises and who catches each is a table in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONG = 100  # characters of a command line in an error


class ColmetError(Exception):
    """Base of all of them; its text is written for the administrator."""


class ConfigError(ColmetError):
    """The command line or the environment asks for what cannot be done; the daemon exits with status 2."""


class WireError(ColmetError):
    """A message does not follow its dialect; it is refused whole."""


class OverBudget(WireError):
    """A message needs more of the collector than its sender may use now; it may be taken later.

    Attributes:
        budget: "fields", "tables" or "hosts".
    """

    def __init__(self, text: str, budget: str) -> None:
        super().__init__(text)
        self.budget = budget


class ParseError(ColmetError):
    """A file does not have the form its source documents."""

    def __init__(self, path: str, text: object) -> None:
        super().__init__(f"{path}: cannot parse {text!r}")


class BackendUnavailable(ColmetError):
    """This node lacks what an input backend needs: hardware, driver, right or library."""


class OutputUnavailable(ColmetError):
    """An output cannot take rows now (disk full, database away); it is to be tried again with the same rows."""


class CommandFailed(ColmetError):
    """A program that is asked for values cannot be started, fails, or does not answer in time.

    Attributes:
        text: what went wrong, without the command line.
        why: "absent", "status", "late", or "" for what else there is.
    """

    def __init__(self, argv: Sequence[str], text: str, why: str = "") -> None:
        line = " ".join(argv)
        super().__init__(f"{line if len(line) <= _LONG else line[:_LONG] + '...'}: {text}")
        self.text = text
        self.why = why


class Refused(ColmetError):
    """What was asked for on the control socket cannot be done; the text says why, to whoever asked."""


class Unreachable(ColmetError):
    """No daemon answers on its control socket.

    Attributes:
        why: "absent", "denied" or "silent".
    """

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why
