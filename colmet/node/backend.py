"""The interface of every input backend."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from colmet.common.cli import Options
from colmet.common.schema import Sample, Schema
from colmet.node.host import Host
from colmet.node.jobs import Job


class InputBackend(ABC):
    """Measures one table.

    Life: built from the command line; `open()`, again with back-off for as long as it raises BackendUnavailable;
    `sample()` at every tick; `close()`.
    """

    name: ClassVar[str]
    schema: Schema

    @classmethod
    @abstractmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that this backend uses."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> InputBackend | None:
        """The backend that the command line asks for, or None where it does not."""

    @abstractmethod
    def open(self) -> None:
        """Get ready to measure.

        Raises:
            BackendUnavailable: this node lacks what it needs; the text says what, and the remedy.
        """

    @abstractmethod
    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job that has something to tell, or one of job 0 for the node.

        Raises:
            ParseError: a file has another form.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; also after a failed open, also twice."""
