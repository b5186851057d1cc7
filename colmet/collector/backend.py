"""The interface of every output."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from colmet.common.cli import Options
from colmet.common.schema import Batch


class OutputBackend(ABC):
    """Writes batches somewhere.

    Life: built from the command line, `open()` once, then `write()` and `reopen()` any number of times, `close()`.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options that this output uses."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace) -> OutputBackend | None:
        """The output that the command line asks for, or None where it does not.

        Raises:
            ConfigError: the options cannot work together.
        """

    @abstractmethod
    def open(self) -> None:
        """Get ready to write.

        Raises:
            ConfigError: it can never work as configured, e.g. a path that cannot be written.
        """

    @abstractmethod
    def write(self, batches: Sequence[Batch]) -> None:
        """Write all rows of all batches, or none of them.

        Raises:
            OutputUnavailable: nothing was written for now; the same batches may be given again.
        """

    def reopen(self) -> None:  # noqa: B027 - most outputs have nothing to reopen
        """SIGHUP: start the next file, where the output has files."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; also after a failed open, also twice."""
