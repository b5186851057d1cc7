"""The stored and the missing rows of a job."""

from __future__ import annotations

from dataclasses import dataclass


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
