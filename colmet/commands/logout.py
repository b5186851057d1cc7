"""Remove the login kept by `colmet login`.

The token stays valid at the interface up to its end: if others may have it, change the password, or remove the token
with `colmet access`.
"""

from __future__ import annotations

import argparse
import sys

from colmet.commands import logins, remote
from colmet.common.runtime import cli


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
example:
  colmet logout https://head.example.org:8080

exit status:
  0  removed, or there was none
  2  wrong command line, or the file of logins cannot be used"""
    parser.add_argument("url", metavar="URL", help="URL of the interface, as for colmet login")


def run(options: argparse.Namespace) -> int:
    """Remove the login; return the exit status."""
    url = remote.checked_url(options.url, True)
    was_there = logins.remove(url)
    print(f"{url}: {'login removed' if was_there else 'there was no login'}", file=sys.stderr)
    return 0
