"""afmetrics_collector: colmet-facility with the options, defaults and log lines of the program of this name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from colmet.facility.command import run_program
from colmet.facility.options import Program

PROGRAM = Program(
    name="afmetrics_collector",
    description="Do what afmetrics_collector did, with its options.",
    cluster="UC-AF",
    url="https://af.atlas-ml.org/",
    state_file="/run/afmetrics.json",
    is_alias=True,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``afmetrics_collector``; return the exit status."""
    return run_program(PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(main())
