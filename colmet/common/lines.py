"""What reports show of a job: values over time, its stored and missing rows, and text of unknown origin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MAX_NAME = 40  # characters shown of a host's or a GPU's name
LONGEST = 2000  # characters of a text


def shown(text: str, longest: int = MAX_NAME) -> str:
    """Return text of unknown origin in a displayable form: without control characters, and not too long."""
    text = "".join([one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[: longest + 1]])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def text_of(value: object) -> str:
    """Return a label as printable text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


@dataclass(frozen=True)
class Line:
    """A value over time."""

    host: str  # its host
    label: str  # its GPU, zone and the like, where a host has several at one time; else empty
    times: Floats  # seconds since 1970, ascending, shape (n,)
    values: Floats  # NaN at an interruption of the line, shape (n,)

    @property
    def name(self) -> str:
        """Return the name for a legend."""
        return " ".join([shown(text) for text in (self.host, self.label) if text])


@dataclass(frozen=True)
class JobGap:
    """A gap in the rows of some tables of a job, on one host."""

    host: str
    first: int
    last: int
    why: str
    tables: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class JobCompleteness:
    """The stored and the missing rows of a job.

    Attributes:
        here: stored rows.
        missing: missing rows.
        method: ``ledger`` by the nodes' own counts; ``steps`` as an estimate by the steps between rows; ``mixed`` if
            some tables have one and some the other.
        gaps: by host and time.
    """

    here: int
    missing: int
    method: str
    gaps: tuple[JobGap, ...] = ()

    @property
    def here_ratio(self) -> float | None:
        """Return the share of the due rows that is stored; None without due rows."""
        due = self.here + self.missing
        return self.here / due if due else None
