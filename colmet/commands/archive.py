"""Manage the job archive of this machine's collector.

`rebuild` makes it again from stored rows; `forget` removes the jobs of a user, or the user's name; `info` prints what
it has.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Mapping

from colmet.commands import archive_forget, archive_rebuild, archives, selection
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.host.capabilities import become_owner
from colmet.stored import sources

ACTIONS: Mapping[str, Callable[[argparse.Namespace, str], int]] = {
    "rebuild": archive_rebuild.run,
    "forget": archive_forget.run,
    "info": archive_rebuild.info,
}
OF_FORGET = ("user", "pseudonym", "rows", "dry_run", "yes")


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet archive info
  systemctl stop colmet-collector; colmet archive rebuild; systemctl start colmet-collector
  colmet archive rebuild --output /tmp/again.sqlite
  colmet archive forget --user alice --dry-run
  colmet archive forget --user alice --rows

exit status:
  0  done
  1  failed, or a part of a user's data is left
  2  wrong command line or configuration, or the collector runs"""
    parser.add_argument("action", choices=tuple(ACTIONS), help="what to do")
    parser.add_argument(
        "--archive", metavar="PATH", help="the file of the job archive (default: that of the collector's configuration)"
    )
    parser.add_argument(
        "--output", metavar="PATH", help="rebuild: write to this new file, and leave the archive as it is"
    )
    selection.add_user(parser, "forget: the user")
    parser.add_argument(
        "--pseudonym", action="store_true", help="forget: keep the jobs, under a random name instead of the user's"
    )
    parser.add_argument(
        "--rows", action="store_true", help="forget: remove the jobs' rows from HDF5 files as well, except the newest"
    )
    parser.add_argument("--dry-run", action="store_true", help="forget: print what would be removed")
    parser.add_argument("-y", "--yes", action="store_true", help="forget: do not ask")
    sources.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    if options.action != "forget":
        for name in OF_FORGET:
            if getattr(options, name):
                raise ConfigError(f"--{name.replace('_', '-')} is an option of forget")
    if options.action != "rebuild" and options.output is not None:
        raise ConfigError("--output is an option of rebuild")
    path = _path(options)
    if options.action in ("rebuild", "forget"):
        options.caller_uid = os.getuid()
        _leave_root(options, path)
    return ACTIONS[options.action](options, path)


def _leave_root(options: argparse.Namespace, path: str) -> None:
    """As root, become the user of the folders that are written: links there would lead root to any file."""
    # Modules may be unreadable for that user.
    importlib.import_module("colmet.stored.hdf5")
    written = [options.output or path]
    if options.action == "forget" and options.rows:
        written += archive_forget.files(options)
    become_owner(*written)


def _path(options: argparse.Namespace) -> str:
    """Return the path of the archive; empty for stored rows of another machine: there is none to keep values of."""
    if options.archive:
        return str(options.archive)
    if options.output is not None and options.hdf5 and not os.path.exists(options.config):
        return ""
    return archives.configured_archive(options.config, "--archive PATH")
