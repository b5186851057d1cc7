"""Write the manual pages and the completions of shells, from the command lines of all programs.

usage: python -m dev.generate TEMPLATES DIRECTORY

The pages go to DIRECTORY/man, the completions to DIRECTORY/bash and DIRECTORY/zsh, under the names that the
shells look for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from colmet.commands import completion
from dev import manpages

FILE = {"bash": "{}", "zsh": "_{}"}


def main(argv: Sequence[str]) -> int:
    """Write all; the exit status."""
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    templates, directory = map(Path, argv)
    manpages.write(templates, directory / "man")
    for shell, name_of in FILE.items():
        (directory / shell).mkdir(parents=True, exist_ok=True)
        for name, tree in completion.trees().items():
            path = directory / shell / name_of.format(name)
            path.write_text(completion.script(shell, {name: tree}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
