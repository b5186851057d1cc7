"""Manage the users of the JSON interface and the page, in the file of colmet-web's option --users.

`add NAME` reads a password from the terminal, or with --token prints a new token, once. A user can have one password
and several tokens. A running colmet-web reads the changed file within a second.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import getpass
import grp
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone

from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.host.files import NOT_GIVEN, write_whole
from colmet.web import credentials

GROUP = "colmet"  # of the collector and of colmet-web, to read the file
ALLOWED = {
    "list": (),
    "remove": ("NAME", "--token"),
    "add with --token": ("NAME", "--group", "--token", "--until"),
    "add without --token": ("NAME", "--group", "--password-stdin"),
}
HEAD = "# Users of Colmet's JSON interface. Written by colmet access; see its help.\n"


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet access /etc/colmet/users add alice
  colmet access /etc/colmet/users add grafana --group admin --token dashboards --until 2027-12-31
  colmet access /etc/colmet/users list

exit status:
  0  done
  2  an option or the file is not usable"""
    parser.add_argument("file", metavar="FILE", help="the file of users; add creates it")
    parser.add_argument("action", choices=("add", "remove", "list"), help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="user name, as in the jobs")
    parser.add_argument(
        "--group",
        metavar="GROUP",
        action="append",
        help="add the user with this password or token to this group; members of colmet-web's --admin-group "
        "(admin) see all jobs; repeatable",
    )
    parser.add_argument(
        "--token", metavar="LABEL", nargs="?", const="", help="add or remove a token with this label, not the password"
    )
    parser.add_argument("--until", metavar="YYYY-MM-DD", help="last day (UTC) on which the token is valid")
    parser.add_argument(
        "--password-stdin", action="store_true", help="read the password from the first line of standard input"
    )


def run(options: argparse.Namespace) -> int:
    """Change the file, or print its content."""
    _check(options)
    if options.action == "list":
        for text in listed(options.file):
            print(text)
        return 0
    if not options.name:
        raise ConfigError(f"give a name: colmet access {options.file} {options.action} NAME")
    try:
        credentials.check_name(options.name)
        if options.token:
            credentials.check_label(options.token)
        groups = None if options.group is None else frozenset(map(credentials.check_group, options.group))
        until = None if options.until is None else date.fromisoformat(options.until)
    except ValueError as err:
        raise ConfigError(str(err)) from err
    if until is not None and until < datetime.now(timezone.utc).date():
        raise ConfigError(f"--until {until.isoformat()} is in the past: the token would be invalid")
    if options.action == "remove":
        if not remove(options.file, options.name, options.token):
            such = "" if options.token is None else " with such a token"
            raise ConfigError(f"{options.file}: there is no {options.name}{such}")
        what = {None: "password and tokens", "": "tokens without a label"}.get(options.token, f"token {options.token}")
        print(f"{options.name}: {what} removed", file=sys.stderr)
        return 0
    if options.token is not None:
        token = credentials.make_token()
        add(
            options.file, options.name, credentials.Token(credentials.token_digest(token), options.token, until), groups
        )
        print(token)  # alone on standard output, for scripts
        return 0
    try:
        secret = credentials.make_password(_password(options.password_stdin))
    except ValueError as err:
        raise ConfigError(str(err)) from err
    was_there = add(options.file, options.name, secret, groups)
    print(f"{options.name}: {'another' if was_there else 'a'} password set", file=sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> None:
    what = options.action
    if what == "add":
        what += " without --token" if options.token is None else " with --token"
    for argument in ("NAME", "--group", "--token", "--until", "--password-stdin"):
        value = getattr(options, argument.lstrip("-").replace("-", "_").lower())
        if value not in (None, False) and argument not in ALLOWED[what]:
            raise ConfigError(f"{what} has no {argument}")


def add(path: str, name: str, secret: credentials.Secret, groups: frozenset[str] | None = None) -> bool:
    """Write a password, with the groups of the former one by default, or a token; return whether one was replaced."""
    with _locked(path):
        texts, before = _texts(path)
        was_there, found, kept = False, groups or frozenset(), []
        for text in texts:
            line = credentials.parse_line(text)
            if line is not None and line.name == name:
                if isinstance(line.secret, credentials.Password) and isinstance(secret, credentials.Password):
                    was_there = True
                    found = line.groups if groups is None else groups
                    continue
                if (
                    isinstance(line.secret, credentials.Token)
                    and isinstance(secret, credentials.Token)
                    and line.secret.label == secret.label
                ):
                    which = f"a token {secret.label}" if secret.label else "a token without a label"
                    raise ConfigError(f"{path}: {name} has {which}; give another label, or remove that one first")
            kept.append(text)
        _write(path, [*kept, credentials.Credential(name, secret, found).text()], before)
    return was_there


def remove(path: str, name: str, label: str | None = None) -> int:
    """Remove a name from the file, or only its tokens with a label; return the number of removed lines."""
    with _locked(path):
        texts, before = _texts(path)
        if before is None:
            raise ConfigError(f"{path} is not there")
        kept = [
            text
            for text, line in zip(texts, map(credentials.parse_line, texts))
            if line is None or line.name != name or (label is not None and getattr(line.secret, "label", None) != label)
        ]
        if len(kept) < len(texts):
            _write(path, kept, before)
    return len(texts) - len(kept)


def listed(path: str) -> Sequence[str]:
    """Return a line for each password and token: its user, kind and groups."""
    users, _ = credentials.read_users(path)
    lines = [*users.passwords.values(), *users.tokens.values()]
    width = max([len(line.name) for line in lines], default=0)
    texts = []
    for line in sorted(lines, key=lambda line: (line.name, line.secret.text())):
        what = "password"
        if isinstance(line.secret, credentials.Token):
            until = f" until {line.secret.until.isoformat()}" if line.secret.until is not None else ""
            what = f"token {line.secret.label or '-'}{until}"
        texts.append(f"{line.name:{width}}  {what}  {','.join(sorted(line.groups))}".rstrip())
    return texts


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline(credentials.MAX_SECRET + 2).removesuffix("\n")
    try:
        first = getpass.getpass("Password: ")
        again = getpass.getpass("Again: ")
    except EOFError:
        raise ConfigError("no password was given; --password-stdin reads it from the standard input") from None
    if first != again:
        raise ConfigError("these are two passwords")
    return first


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Allow one change at a time: lock a file beside it, as the file itself is replaced."""
    folder, name = os.path.split(os.path.abspath(path))
    lock = os.path.join(folder, f".{name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise ConfigError(f"{path}: another `colmet access` changes it, and holds {lock}; try again") from err
        except OSError as err:
            raise ConfigError(f"{lock}: {err.strerror}") from err
        yield


def _texts(path: str) -> tuple[list[str], os.stat_result | None]:
    """Return the lines of a valid file, and its status; the head alone, and None, if it is missing."""
    if not os.path.lexists(path):
        return [HEAD.rstrip("\n")], None
    credentials.read_users(path)  # a file with an error has to be corrected first
    texts, found = credentials.read_lines(path)
    texts = list(texts)
    while texts and not texts[-1].strip():
        texts.pop()
    return texts, found


def _write(path: str, texts: Sequence[str], before: os.stat_result | None) -> None:
    """Replace the file; owner, group and permissions stay, and a new file is for this user and the collector."""
    mode, owner, group = 0o600, -1, -1
    if before is not None:
        mode = stat.S_IMODE(before.st_mode)
        if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            owner, group = before.st_uid, before.st_gid
    else:
        with contextlib.suppress(KeyError):
            mode, group = 0o640, grp.getgrnam(GROUP).gr_gid
    content = ("\n".join(texts) + "\n").encode()
    try:
        try:
            write_whole(os.path.realpath(path), content, mode=mode, owner=owner, group=group, shared=True)
        except OSError as err:
            if before is not None or err.errno not in NOT_GIVEN:
                raise
            write_whole(os.path.realpath(path), content, shared=True)
    except OSError as err:
        raise ConfigError(f"{path}: cannot be written: {err.strerror}") from err
