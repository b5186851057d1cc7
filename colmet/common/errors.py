"""Every exception that Colmet raises on purpose.

docs/architecture.md has the table of raisers and handlers.
"""

from __future__ import annotations

from collections.abc import Sequence

# Ends the errors on files of a later version: an earlier one neither changes nor removes them.
_LATER = "is of a later Colmet (form {form}, this version reads up to {reads}); install that version again, or {remedy}"
_LONG = 100  # characters of a command line in an error
LONGEST_TEXT = 200  # characters of a text in an error


class ColmetError(Exception):
    """Base of all Colmet exceptions; its text is written for the administrator."""


class ConfigError(ColmetError):
    """An impossible request on the command line or in the environment; the daemon exits with status 2."""


class WireError(ColmetError):
    """A message that violates its dialect; it is refused whole."""


class OverBudget(WireError):
    """A message beyond its sender's `budget` of "fields", "tables" or "hosts"; it may be accepted later."""

    def __init__(self, text: str, budget: str) -> None:
        super().__init__(text)
        self.budget = budget


class Undescribed(WireError):
    """A message in the short form, with a table whose description its reader does not have.

    Attributes:
        host: its sender.
        epoch: the sender's start.
    """

    host, epoch = "", 0


class ParseError(ColmetError):
    """A file or an answer with another form than its source documents.

    Args:
        path: of the file, or the command.
        text: the part that cannot be read, such as a line; its start is shown.
    """

    def __init__(self, path: str, text: object) -> None:
        if isinstance(text, (str, bytes)):
            text = text[:LONGEST_TEXT]
        super().__init__(f"{path}: cannot parse {text!r}")


class BackendUnavailable(ColmetError):
    """A missing requirement of an input backend on this node: hardware, driver, permission or library."""


class OutputUnavailable(ColmetError):
    """A temporary failure of an output (disk full, database away); to be retried with the same rows."""


class CommandFailed(ColmetError):
    """Failure of a program run for its values: it cannot be started, fails, or exceeds its timeout.

    `text` is the problem without the command line; `why` "absent", "status", "late", or "" for other causes.
    """

    def __init__(self, argv: Sequence[str], text: str, why: str = "") -> None:
        line = " ".join(argv)
        super().__init__(f"{line if len(line) <= _LONG else line[:_LONG] + '...'}: {text}")
        self.text = text
        self.why = why


class Refused(ColmetError):
    """A request on the control socket that cannot be carried out; the text gives the client the reason."""


class Unreachable(ColmetError):
    """No reply from a daemon on its control socket; `why` is "absent", "denied" or "silent"."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why


def later_form(path: str, form: object, reads: int, remedy: str) -> str:
    """Return the text of an error on a file whose form only a later version reads."""
    return f"{path} {_LATER.format(form=form, reads=reads, remedy=remedy)}"


def is_later(form: object, reads: int) -> bool:
    """Return whether the form of a file is one of a later version."""
    return type(form) is int and form > reads
