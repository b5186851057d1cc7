"""Remove the login kept by `colmet login`.

The token stays valid at the interface up to its end: if others may have it, change the password, or remove the token
with `colmet access`.
"""

from __future__ import annotations

import argparse
import sys

from colmet.commands import remote
from colmet.common.config import cli
from colmet.common.errors import ConfigError


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
example:
  colmet logout

exit status:
  0  removed, or there was none
  2  wrong command line, or the file of logins cannot be used"""
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="URL of the interface, as for colmet login (default: of the only login)"
    )


def run(options: argparse.Namespace) -> int:
    """Remove the login; return the exit status."""
    given = options.url or remote.only_url()
    if not given:
        raise ConfigError("there is none, or several: give URL")
    url = remote.checked_url(given, True)
    was_there = remote.remove_login(url)
    print(f"{url}: {'login removed' if was_there else 'there was no login'}", file=sys.stderr)
    return 0
