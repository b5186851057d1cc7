"""The coordinators of Slurm's accounts: who leads which project."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from colmet.batch import answers
from colmet.batch.answers import unknown_form

# Source: sacctmgr(1), "withcoord"; the coordinators of an account are those of its parents, too.
COMMAND = (
    "sacctmgr",
    "--noheader",
    "--parsable2",
    "--readonly",
    "show",
    "account",
    "withcoord",
    "format=account,coord",
)
_NAME = re.compile(r"[^\s|,:#\x00-\x20\x7f][^|,:\x00-\x1f\x7f]{0,254}")


def parse_coordinators(text: str) -> Mapping[str, frozenset[str]]:
    """Return the coordinators of each account that has some: lines such as ``physics|alice,bob``.

    Raises:
        BatchError: a line has another form: who may see what is not guessed from the others.
    """
    found: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        account, bar, listed = line.partition("|")
        names = [name for name in listed.split(",") if name]
        if not bar or account in found or not all(_NAME.fullmatch(name) for name in (account, *names)):
            raise unknown_form(" ".join(COMMAND), line)
        found[account] = frozenset(names)
    return {account: names for account, names in found.items() if names}


def read_coordinators() -> Mapping[str, frozenset[str]]:
    """Ask Slurm, and return the coordinators by account; BatchError without a usable answer."""
    return parse_coordinators(answers.ask(COMMAND, "Slurm"))


def has_accounts() -> bool:
    """Return whether Slurm's accounts can be asked for on this machine."""
    return shutil.which(COMMAND[0]) is not None
