"""The configuration of notices: a file in TOML, /etc/colmet/notices.toml. Without rules in it, notices are off."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from typing import Any

from colmet.common.config import cli, secretfile
from colmet.common.config.configuration import file_text, parse
from colmet.common.errors import ConfigError
from colmet.common.http_client import is_readable_on_the_way, parse_url
from colmet.common.text import document
from colmet.notices import addresses, quiet
from colmet.notices.addresses import Lookup
from colmet.notices.delivery import PLAIN, PORTS, STARTTLS, Server
from colmet.notices.rules import RULES

DEFAULT_PATH = "/etc/colmet/notices.toml"
STATE_DIRECTORY = "/var/lib/colmet-notices"
_SERVER = re.compile(r"(?:([a-z]+)://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+|[0-9A-Fa-f:]*::[0-9A-Fa-f:.]*)(?::(\d{1,5}))?")


def state_path() -> str:
    """Return the path of the file with what was sent: in systemd's directory of the unit, or the usual one."""
    return os.path.join(os.environ.get("STATE_DIRECTORY") or STATE_DIRECTORY, "notices.sqlite")


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
    add("--quiet-hours", type=quiet.hours, help="hours in which nothing is sent")
    add("--no-notices", action="append", default=[], metavar="USER", help="users who get none")
    add("--ignore-queues", action="append", default=[], metavar="QUEUE", help="queues whose jobs are not judged")
    add("--cluster", default="", help="name of the cluster, in mails and documents")
    add("--contact", default="", help="whom users may ask, in mails")
    add("--mail-server", type=mail_server, help="SMTP server")
    add("--mail-login", metavar="FILE", help="file with user:password")
    add("--mail-from", type=addresses.address, help="address of the sender")
    add("--administrators", type=addresses.address, action="append", default=[], help="their addresses")
    add("--user-address", type=addresses.pattern_or_path, help="pattern of the users' addresses, or a file of them")
    add("--webhook", type=_http, metavar="URL", help="receives notices as JSON")
    add("--webhook-secret", metavar="FILE", help="file with the key of signatures")
    add("--command", action="append", default=[], help="program that receives notices as JSON")
    return parser


class NoticeSettings:
    """The checked configuration.

    Args:
        path: of the file; None for the default one.
        is_dry: whether nothing is sent: a file may be missing, and all rules are on unless some are chosen.

    Raises:
        ConfigError: the file cannot be used, or nothing would be sent.
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
        self.calendar = quiet.Calendar(options.quiet_hours)
        self.user_rules = frozenset(options.user_rules)
        self.administrator_rules = frozenset(options.administrator_rules)
        if is_dry and not self.user_rules | self.administrator_rules:
            self.user_rules = self.administrator_rules = frozenset(RULES)
        elif not is_dry:
            self._check()
        self.server = self._server()
        self.find = self._lookup()
        self.webhook_secret = self._secret()

    @property
    def has_ways(self) -> bool:
        """Return whether there is any way to send notices."""
        return bool(self.options.mail_server or self.options.webhook or self.options.command)

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError(f"{self.path}: {text}")

    def _check(self) -> None:
        """Refuse a configuration by which nothing would be sent."""
        options = self.options
        if not self.user_rules | self.administrator_rules:
            raise self._wrong(
                f"notices are off: neither user-rules nor administrator-rules names one of {', '.join(RULES)}"
            )
        has_programs = bool(options.webhook or options.command)
        if not options.mail_server and not has_programs:
            raise self._wrong("no way to send notices: give mail-server, webhook or command")
        if self.administrator_rules and options.mail_server and not options.administrators and not has_programs:
            raise self._wrong("administrator-rules has no effect without administrators, a webhook or a command")
        if self.user_rules and options.mail_server and not options.user_address and not has_programs:
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

    def _lookup(self) -> Lookup | None:
        given: str | None = self.options.user_address
        if not given:
            return None
        return addresses.by_file(given) if given.startswith("/") else addresses.by_pattern(given)

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
