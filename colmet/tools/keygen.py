"""Make pairs of keys: NAME.key, which may be shown to everybody, and NAME.secret, which stays on its machine alone.

The collector gets one pair, each node its own. The name of a node's files is what `hostname` says there: its key is
good for the data of that host, and of no other. Nothing is ever overwritten.
"""

from __future__ import annotations

import argparse
import os

from colmet.common import cli
from colmet.common.errors import ConfigError
from colmet.common.keys import PUBLIC, SECRET, check_name, write_pair
from colmet.common.transport import new_pair

DIRECTORY = "/etc/colmet/keys"
MAX_LIST_BYTES = 16 << 20


def add_options(parser: cli.Options) -> None:
    """The command line of ``colmet keygen``."""
    parser.add_argument("role", choices=("collector", "node"), help="whose keys")
    parser.add_argument("names", metavar="NAME", nargs="*", help="host names of nodes; of a collector: any one name")
    parser.add_argument("--from-file", metavar="FILE", help="read more names from here, one a line")
    parser.add_argument(
        "--directory", metavar="DIR", default=DIRECTORY, help="where to write them (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the files, and tell their names.

    Raises:
        ConfigError: a name, the list or the directory cannot be used, or a file is there already.
    """
    names = list(options.names)
    if options.from_file:
        names += read_names(options.from_file)
    if options.role == "collector":
        names = names or ["collector"]
        if len(names) > 1:
            raise ConfigError("one pair is enough: all collectors of a cluster share it")
    if not names:
        raise ConfigError("give the host names of the nodes, or --from-file FILE")
    if len(set(names)) < len(names):
        raise ConfigError("a name is given twice")
    for name in names:
        check_name(name)
        for suffix in (PUBLIC, SECRET):
            if os.path.lexists(path := os.path.join(options.directory, name + suffix)):
                raise ConfigError(f"{path} is there already; move it away to have another key for {name}")
    try:
        os.makedirs(options.directory, mode=0o755, exist_ok=True)
    except OSError as err:
        raise ConfigError(f"--directory {options.directory}: {err.strerror}") from err
    for name in names:
        print(*write_pair(options.directory, name, new_pair()))
    return 0


def read_names(path: str) -> list[str]:
    """The names in a file: one a line, with comments that begin with ``#``.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(MAX_LIST_BYTES)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--from-file {path}: {err}") from err
    return [name for line in text.splitlines() if (name := line.partition("#")[0].strip())]
