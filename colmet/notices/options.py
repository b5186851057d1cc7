"""The configuration of notices: a file in TOML, /etc/colmet/notices.toml. Without rules in it, notices are off."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any

from colmet.common.config import cli, secretfile
from colmet.common.config.configuration import file_text, parse
from colmet.common.errors import ConfigError
from colmet.common.http_client import is_readable_on_the_way, parse_url
from colmet.common.text import document
from colmet.notices.delivery import PLAIN, PORTS, STARTTLS, Calendar, Server, hours
from colmet.notices.rules import RULES

DEFAULT_PATH = "/etc/colmet/notices.toml"
STATE_DIRECTORY = "/var/lib/colmet-notices"  # unless systemd names another one for its unit
_SERVER = re.compile(r"(?:([a-z]+)://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+|[0-9A-Fa-f:]*::[0-9A-Fa-f:.]*)(?::(\d{1,5}))?")


def _http(text: str) -> str:
    if parse_url(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not an address such as https://chat.site.org/hook")
    return text


def mail_server(text: str) -> Server:
    """Convert an SMTP server, an option type: [starttls://|smtps://|smtp://]HOST[:PORT]."""
    match = _SERVER.fullmatch(text) if text.isprintable() else None
    scheme, host, port = match.groups() if match else ("", "", None)
    host = host.strip("[]")
    if not host or (scheme and scheme not in PORTS) or not 0 < int(port or 1) < 65536:
        raise argparse.ArgumentTypeError(
            f"{text!r:.100} is not a server such as smtp.site.org or smtps://smtp.site.org"
        )
    scheme = scheme or (PLAIN if _is_here(host) else STARTTLS)
    return Server(host, int(port or PORTS[scheme]), scheme)


def build_parser() -> cli.Parser:
    """Return the options of the file."""
    parser = cli.Parser(prog="colmet notices")
    add = parser.add_argument
    rules: dict[str, Any] = {"action": "append", "default": [], "choices": tuple(RULES), "metavar": "RULE"}
    add("--user-rules", **rules, help="rules whose notices go to the job's user")
    add("--administrator-rules", **rules, help="rules whose notices go to the administrators")
    add("--quiet-hours", type=hours, help="hours in which nothing is sent")
    add("--no-notices", action="append", default=[], metavar="USER", help="users who get none")
    add("--ignore-queues", action="append", default=[], metavar="QUEUE", help="queues whose jobs are not judged")
    add("--cluster", default="", help="name of the cluster, in mails and documents")
    add("--contact", default="", help="whom users may ask, in mails")
    add("--mail-server", type=mail_server, help="SMTP server")
    add("--mail-login", metavar="FILE", help="file with user:password")
    add("--mail-from", type=address, help="address of the sender")
    add("--administrators", type=address, action="append", default=[], help="their addresses")
    add("--user-address", type=pattern_or_path, help="pattern of the users' addresses, or a file of them")
    add("--webhook", type=_http, metavar="URL", help="receives notices as JSON")
    add("--webhook-secret", metavar="FILE", help="file with the key of signatures")
    add("--command", action="append", default=[], help="program that receives notices as JSON")
    return parser


class NoticeSettings:
    """The checked configuration; ConfigError if the file cannot be used, or nothing would be sent.

    With `is_dry` nothing is sent: a file may be missing, and all rules are on unless some are chosen.
    """

    def __init__(self, path: str | None, is_dry: bool = False) -> None:
        self.path = path or DEFAULT_PATH
        parser = build_parser()
        options = parser.parse_args([])
        if path is not None or os.path.exists(self.path):
            vars(options).update(parse(file_text(self.path), self.path, parser))
        elif not is_dry:
            raise self._wrong(
                f"there is no such file, so notices are off; {document('tools/notices.md')} has an example"
            )
        self.options = options
        self.has_ways = bool(options.mail_server or options.webhook or options.command)
        self.calendar: Calendar = options.quiet_hours or Calendar()
        self.user_rules = frozenset(options.user_rules)
        self.administrator_rules = frozenset(options.administrator_rules)
        if is_dry and not self.user_rules | self.administrator_rules:
            self.user_rules = self.administrator_rules = frozenset(RULES)
        elif not is_dry:
            self._check()
        self.server = self._server()
        given: str | None = options.user_address
        self.find: Lookup | None = None
        if given:
            self.find = by_file(given) if given.startswith("/") else by_pattern(given)
        self.webhook_secret = self._secret()

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError(f"{self.path}: {text}")

    def _check(self) -> None:
        options = self.options
        if not self.user_rules | self.administrator_rules:
            raise self._wrong(
                f"notices are off: neither user-rules nor administrator-rules names one of {', '.join(RULES)}"
            )
        if not self.has_ways:
            raise self._wrong("no way to send notices: give mail-server, webhook or command")
        if not options.webhook and not options.command:
            if self.administrator_rules and not options.administrators:
                raise self._wrong("administrator-rules has no effect without administrators, a webhook or a command")
            if self.user_rules and not options.user_address:
                raise self._wrong("user-rules has no effect without user-address")

    def _server(self) -> Server | None:
        options = self.options
        server: Server | None = options.mail_server
        if server is None:
            return None
        if not options.mail_from:
            raise self._wrong("mail-server requires mail-from, the address of the sender")
        if not options.mail_login:
            return server
        user, colon, password = secretfile.read_safe_line("mail-login", options.mail_login).partition(":")
        if not colon or not user.isascii() or not password.isascii():
            raise self._wrong(f"mail-login {options.mail_login}: not user:password in ASCII")
        if server.scheme == PLAIN and not _is_here(server.host):
            raise self._wrong("mail-server with smtp:// shows mail-login to the network; use starttls:// or smtps://")
        return server._replace(user=user, password=password)

    def _secret(self) -> bytes:
        options = self.options
        if options.webhook and is_readable_on_the_way(options.webhook):
            raise self._wrong("webhook without https shows users and jobs to the network; use https")
        if not options.webhook_secret:
            return b""
        if not options.webhook:
            raise self._wrong("webhook-secret has no effect without webhook")
        return secretfile.read_safe_line("webhook-secret", options.webhook_secret).encode()


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- addresses of mail; user names are hostile --

MAX_FILE = 16 << 20
MARK = "%u"  # the user's name in a pattern

_ADDRESS = re.compile(r"[A-Za-z0-9!#$&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)

Lookup = Callable[[str], "str | None"]


def is_address(text: str) -> bool:
    """Return whether a text is an address such as alice@site.org: no name, no quotes, no spaces."""
    return bool(_ADDRESS.fullmatch(text)) and not text.startswith("-")


def address(text: str) -> str:
    """Convert an address, an option type."""
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not an address such as alice@site.org")
    return text


def pattern_or_path(text: str) -> str:
    """Convert a pattern of addresses, %u@site.org, or the absolute path of a file with them, an option type."""
    if not text.startswith("/") and (MARK not in text or not is_address(text.replace(MARK, "user"))):
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not a pattern such as %u@site.org, nor the path of a file")
    return text


def by_pattern(text: str) -> Lookup:
    """Return the look-up of users by a pattern."""

    def find(user: str) -> str | None:
        found = text.replace(MARK, user)
        return found if _USER.fullmatch(user) and is_address(found) else None

    return find


def by_file(path: str) -> Lookup:
    """Return the look-up of users in a file, with a user and an address in each line; ConfigError for another form."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as err:
        raise ConfigError(f"user-address {path}: {err.strerror}") from err
    if len(content) > MAX_FILE:
        raise ConfigError(f"user-address {path}: larger than {MAX_FILE >> 20} MiB")
    known = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not is_address(words[1]):
            raise ConfigError(f"user-address {path}:{number}: not a user and an address, such as: alice a@site.org")
        known[words[0].rstrip(":")] = words[1]
    return known.get
