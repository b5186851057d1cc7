"""Options to select data, the same in all commands: the job, the user, the hosts and the interval."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from colmet.commands.times import FORMS, moment
from colmet.common.config import cli
from colmet.common.errors import ConfigError

MAX_JOB = (1 << 63) - 1


def job_id(text: str) -> int:
    """Return the number of a job: an option type. 0 stands for the nodes themselves."""
    try:
        return cli.whole_number(0, MAX_JOB)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not the number of a job") from None


def add_job(parser: cli.Options, help_text: str) -> None:
    """Declare -j and --job."""
    parser.add_argument("-j", "--job", metavar="JOB", type=job_id, help=help_text)


def job_of(options: argparse.Namespace, words: list[str]) -> int:
    """Return the job of --job, else remove and return the first of a command's words."""
    if options.job is not None:
        return int(options.job)
    if not words:
        raise ConfigError("no job is named; give JOB or --job JOB")
    try:
        return job_id(words.pop(0))
    except argparse.ArgumentTypeError as err:
        raise ConfigError(f"{err}; give JOB or --job JOB") from err


def add_user(parser: cli.Options, help_text: str, convert: Callable[[str], str] = str) -> None:
    """Declare -u and --user."""
    parser.add_argument("-u", "--user", metavar="USER", type=convert, default="", help=help_text)


def add_interval(parser: cli.Options) -> None:
    """Declare --since and --until."""
    parser.add_argument("--since", metavar="TIME", type=moment, help=f"only rows from this time on: {FORMS}")
    parser.add_argument("--until", metavar="TIME", type=moment, help="only rows up to this time")


def add_hosts(parser: cli.Options) -> None:
    """Declare --host."""
    parser.add_argument("--host", metavar="HOST", action="append", help="only this host; repeatable")


def check_interval(options: argparse.Namespace) -> None:
    """Refuse an interval with its end before its start."""
    if options.since is not None and options.until is not None and options.since > options.until:
        raise ConfigError("--since is later than --until")
