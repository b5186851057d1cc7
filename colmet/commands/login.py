"""Log in at the JSON interface of a collector, for commands with --url.

It asks for the password, and keeps a token that the interface issues for it; the password is not kept. Behind a proxy
with a login of its own, give a token of the proxy with --token-file, or --keep-password. `colmet logout` removes it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time

from colmet.commands import logins, remote
from colmet.commands.logins import BASIC, BEARER, SECRET, Login
from colmet.commands.remote import InterfaceClient, InterfaceError
from colmet.commands.top.view import clean
from colmet.common.config import cli, secretfile
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.http_client import basic_authorization

MAX_LINE = 4096  # characters of a secret on standard input


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet login https://head.example.org:8080
  colmet login https://head.example.org:8080 --token-file ~/token
  colmet report 4242                          # --url is not needed with a single login

exit status:
  0  done
  1  the interface does not answer, or refuses the login
  2  wrong command line, or the login cannot be kept"""
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="URL of the interface, such as https://head.example.org:8080 (default: that of the other commands)",
    )
    parser.add_argument("-u", "--user", metavar="USER", help="log in as this user (default: you are asked)")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    parser.add_argument(
        "--token-file", metavar="FILE", help="keep the token in this file, of `colmet access` or of a proxy; -: stdin"
    )
    parser.add_argument(
        "--keep-password", action="store_true", help="keep the password itself, for a proxy that issues no tokens"
    )
    remote.add_connection(parser)


def run(options: argparse.Namespace) -> int:
    """Check the login, and keep it; return the exit status."""
    interface = remote.interface_of(options)
    if interface is None:
        raise ConfigError(
            "no collector is known here: give the URL of your site's, such as https://head.example.org:8080"
        )
    url = remote.checked_url(interface.url, options.allow_http or interface.allow_http)
    given_ca = os.path.abspath(options.ca_file) if options.ca_file else ""
    options.ca_file = given_ca or interface.ca_file
    if options.token_file is not None:
        if options.user or options.password_stdin or options.keep_password:
            raise ConfigError("--token-file excludes --user, --password-stdin and --keep-password")
        login = _by_token(url, _token(options.token_file), options)
    else:
        login = _by_password(url, options)
    logins.keep(url, login._replace(ca_file=given_ca))
    until = "" if login.until is None else time.strftime(" until %Y-%m-%d", time.gmtime(login.until))
    print(f"{url}: logged in as {clean(login.user)}{until}", file=sys.stderr)
    return 0


def _by_token(url: str, token: str, options: argparse.Namespace) -> Login:
    login = Login(BEARER, token)
    return login._replace(user=_user(InterfaceClient(url, login.authorization, options.ca_file)))


def _by_password(url: str, options: argparse.Namespace) -> Login:
    name = options.user or _asked("User", getpass.getuser())
    if not name or ":" in name or not name.isprintable():
        raise ConfigError(f"{name!r:.100}: not the name of a user")
    secret = f"{name}:{_password(options.password_stdin)}"
    client = InterfaceClient(url, basic_authorization(secret), options.ca_file)
    try:
        found = client.get("token", method="POST")
    except InterfaceError as err:
        if err.status != 404:
            raise
        user = _user(client)
        if not options.keep_password:
            raise ConfigError(
                f"{url} issues no tokens, as a proxy checks the logins: give a token of it with --token-file, or keep "
                "your password in a file with --keep-password"
            ) from err
        return Login(BASIC, secret, user)
    token, until = found.get("token"), found.get("until")
    if not isinstance(token, str) or not SECRET.fullmatch(token) or type(until) is not int:
        raise ColmetError(f"{url}: the interface issued no token; is it of another version?")
    return Login(BEARER, token, name, until)


def _user(client: InterfaceClient) -> str:
    """Return the user that the interface sees; ColmetError if it is open."""
    user = client.get("whoami").get("user")
    if not isinstance(user, str):
        raise ColmetError(f"{client.url} is open to all: no login is required")
    return user


def _token(path: str) -> str:
    token = _line() if path == "-" else secretfile.read_safe_line("--token-file", path)
    if not SECRET.fullmatch(token):
        raise ConfigError(f"--token-file {path}: not a token")
    return token


def _line() -> str:
    return sys.stdin.readline(MAX_LINE + 1).removesuffix("\n")


def _asked(what: str, default: str) -> str:
    if not sys.stdin.isatty():
        return default
    print(f"{what} [{default}]: ", end="", file=sys.stderr, flush=True)
    return _line().strip() or default


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return _line()
    if not sys.stdin.isatty():
        raise ConfigError("no terminal to read the password from; give --password-stdin or --token-file")
    try:
        return getpass.getpass("Password: ")
    except EOFError:
        raise ConfigError("no password was typed") from None
