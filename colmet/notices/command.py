"""Send notices on jobs that waste what they hold or fail soon: by mail, to a webhook or to a command.

The rules, recipients and ways are those of a configuration file; without rules in it, notices are off. A timer of
systemd, colmet-notices.timer, runs this every 5 minutes. Each notice is sent once.
"""

from __future__ import annotations

import argparse
import sys
import time

from colmet.commands import archives
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.host.capabilities import become_owner
from colmet.common.text import utc
from colmet.notices import addresses
from colmet.notices.delivery import Mailer
from colmet.notices.letter import Letterhead
from colmet.notices.options import DEFAULT_PATH, NoticeSettings, state_path
from colmet.notices.round import Round
from colmet.notices.state import State


def add_options(parser: cli.Parser) -> None:
    """Declare the file, the dry run and the archive."""
    parser.epilog = """\
examples:
  colmet notices --dry-run
  colmet notices --test-mail me@site.org
  systemctl enable --now colmet-notices.timer

exit status:
  0  done, also without any notice
  1  a notice could not be sent, or the archive or the state cannot be used; the next run retries
  2  wrong command line or configuration"""
    parser.add_argument(
        "--rules", metavar="FILE", help=f"the rules and recipients of this site, in TOML (default: {DEFAULT_PATH})"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print each notice and its recipients, send and note nothing; without a file, or without rules in it, "
        "of all rules",
    )
    parser.add_argument(
        "--test-mail", metavar="ADDRESS", type=addresses.address, help="send a test mail to this address, and exit"
    )
    archives.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Send, or print, the notices of this moment; return 1 if one could not be sent."""
    if options.dry_run and options.test_mail:
        raise ConfigError("--dry-run and --test-mail: choose one")
    settings = NoticeSettings(options.rules, options.dry_run or options.test_mail is not None)
    now = time.time()
    if options.test_mail:
        return _test_mail(settings, options.test_mail, now)
    path = state_path()
    if not options.dry_run:
        become_owner(path)
    with archives.open_archive(options) as archive, State(path, not options.dry_run, now) as state:
        round_ = Round(settings, archive, state, now)
        notices = round_.notices()
        if options.dry_run:
            print("\n".join(round_.show(notices)) or "no notices")
            _print_totals(state)
            return 0
        failures = round_.deliver(notices)
        state.add(round_.counts)
    for text in dict.fromkeys(failures):
        print(f"colmet notices: {text}", file=sys.stderr)
    if round_.counts:
        print("notices: " + ", ".join([f"{number} {name}" for name, number in sorted(round_.counts.items())]))
    return 1 if failures else 0


def _print_totals(state: State) -> None:
    counts = state.counts()
    since = counts.pop("since", None)
    if since is not None:
        found = ", ".join([f"{number} {name}" for name, number in sorted(counts.items())]) or "none"
        print(f"since {utc(since)} UTC: {found}")


def _test_mail(settings: NoticeSettings, address: str, now: float) -> int:
    if settings.server is None:
        raise ConfigError(f"{settings.path}: no mail-server")
    given = settings.options
    head = Letterhead(given.mail_from, settings.calendar, given.cluster, given.contact)
    text = f"This mail was sent by colmet notices --test-mail, at {settings.calendar.text(now)}.\n"
    with Mailer(settings.server) as mailer:
        mailer.send(head.message([address], "test mail", text, now, f"test.{int(now)}"), head.sender, [address])
    print(f"sent to {address} by {settings.server.host}:{settings.server.port}")
    return 0
