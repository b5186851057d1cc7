"""The configuration of notices: a file in TOML, /etc/colmet/notices.toml. Without rules in it, notices are off."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
from typing import Any

from colmet.common.errors import ConfigError
from colmet.common.runtime import cli, secretfile
from colmet.common.runtime.configuration import file_text, parse
from colmet.common.runtime.documents import document
from colmet.common.runtime.http_client import TlsOptions, is_readable_on_the_way, parse_url
from colmet.notices import addresses, quiet
from colmet.notices.addresses import Lookup
from colmet.notices.mail import NONE, PORTS, STARTTLS, Server
from colmet.notices.rules import RULES, Thresholds

DEFAULT_PATH = "/etc/colmet/notices.toml"
DEFAULT_STATE = "/var/lib/colmet-notices/notices.sqlite"


def _percent(text: str) -> float:
    value = cli.positive_number(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not a number of percent from 0 to 100")
    return value


def _http(text: str) -> str:
    if parse_url(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not an address such as https://chat.site.org/hook")
    return text


def _host(text: str) -> str:
    if not text or not text.isprintable() or any(one in text for one in " /@"):
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not the name of a host")
    return text


def build_parser() -> cli.Parser:
    """Return the options of the file."""
    parser = cli.Parser(prog="colmet notices")
    add = parser.add_argument
    limits = Thresholds()
    rules: dict[str, Any] = {"action": "append", "default": [], "choices": tuple(RULES), "metavar": "RULE"}
    add("--user-rules", **rules, help="rules whose notices go to the job's user")
    add("--administrator-rules", **rules, help="rules whose notices go to the administrators")
    add("--idle-after", type=cli.period, default=int(limits.idle_s), help="time without CPU use")
    add("--idle-cpu", type=_percent, default=100 * limits.idle_cpu, help="CPU use below which a job is idle, percent")
    add("--gpu-idle-after", type=cli.period, default=int(limits.gpu_idle_s), help="time without GPU use")
    add("--gpu-idle-use", type=_percent, default=100 * limits.gpu_idle_use, help="GPU use that counts, percent")
    add("--memory-share", type=_percent, default=100 * limits.memory_share, help="memory of the limit, percent")
    add("--metadata-rate", type=cli.positive_number, default=limits.metadata_rate, help="operations a second")
    add("--metadata-after", type=cli.period, default=int(limits.metadata_s), help="time with that rate")
    add("--failed-within", type=cli.period, default=int(limits.failed_within_s), help="wall time of a failed job")
    add("--quiet-hours", type=quiet.hours, help="hours in which nothing is sent")
    add("--time-zone", type=quiet.zone, help="time zone of the quiet hours and of times in mails")
    add("--no-notices", action="append", default=[], metavar="USER", help="users who get none")
    add("--ignore-queues", action="append", default=[], metavar="QUEUE", help="queues whose jobs are not judged")
    add("--cluster", default="", help="name of the cluster, in mails and documents")
    add("--contact", default="", help="whom users may ask, in mails")
    add("--state", default=DEFAULT_STATE, help="file with what was sent")
    add("--mail-server", type=_host, help="SMTP server")
    add("--mail-port", type=cli.whole_number(1, 65535), help="its port")
    add("--mail-tls", choices=tuple(PORTS), help="encryption")
    add("--mail-ca", metavar="FILE", help="certificates of accepted authorities")
    add("--mail-login", metavar="FILE", help="file with user:password")
    add("--mail-from", type=addresses.address, help="address of the sender")
    add("--administrators", type=addresses.address, action="append", default=[], help="their addresses")
    add("--user-address", type=addresses.pattern, help="pattern of the users' addresses")
    add("--user-address-file", metavar="FILE", help="file with a user and an address in each line")
    add("--user-address-command", action="append", default=[], help="program that prints the address of a user")
    add("--mails-per-day", type=cli.whole_number(1, 1000), default=10, help="most mails to one recipient")
    add("--webhook", type=_http, metavar="URL", help="receives notices as JSON")
    add("--webhook-secret", metavar="FILE", help="file with the key of signatures")
    add("--webhook-ca", metavar="FILE", help="certificates of accepted authorities")
    add("--webhook-allow-http", action="store_true", help="send over a network without encryption")
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
            cli.warn_of_deprecated(parser.deprecated)
        elif not is_dry:
            raise self._wrong(
                f"there is no such file, so notices are off; {document('tools/notices.md')} has an example"
            )
        self.options = options
        self.limits = Thresholds(
            *(options.idle_after, options.idle_cpu / 100, options.gpu_idle_after, options.gpu_idle_use / 100),
            *(options.memory_share / 100, options.metadata_after, options.metadata_rate, options.failed_within),
        )
        if options.quiet_hours is not None and options.time_zone is None:
            raise self._wrong("quiet-hours has no meaning without time-zone, such as Europe/Paris")
        self.calendar = quiet.Calendar(options.time_zone or datetime.timezone.utc, options.quiet_hours)
        self.user_rules = frozenset(options.user_rules)
        self.administrator_rules = frozenset(options.administrator_rules)
        if is_dry and not self.user_rules | self.administrator_rules:
            self.user_rules = self.administrator_rules = frozenset(RULES)
        elif not is_dry:
            self._check()
        self.server = self._server()
        self.find = self._lookup()
        self.webhook_tls = TlsOptions(ca_file=options.webhook_ca)
        if options.webhook_ca:
            self.webhook_tls.check("webhook-ca")
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
        if self.user_rules and options.mail_server and not self._has_addresses and not has_programs:
            raise self._wrong(
                "user-rules has no effect without user-address, user-address-file or user-address-command"
            )

    @property
    def _has_addresses(self) -> bool:
        options = self.options
        return bool(options.user_address or options.user_address_file or options.user_address_command)

    def _server(self) -> Server | None:
        options = self.options
        if not options.mail_server:
            return None
        if not options.mail_from:
            raise self._wrong("mail-server requires mail-from, the address of the sender")
        tls = options.mail_tls or (NONE if _is_here(options.mail_server) else STARTTLS)
        user = password = ""
        if options.mail_login:
            user, colon, password = secretfile.read_safe_line("mail-login", options.mail_login).partition(":")
            if not colon or not user.isascii() or not password.isascii():
                raise self._wrong(f"mail-login {options.mail_login}: not user:password in ASCII")
            if tls == NONE and not _is_here(options.mail_server):
                raise self._wrong('mail-tls = "none" shows mail-login to the network; use "starttls" or "tls"')
        if options.mail_ca:
            TlsOptions(ca_file=options.mail_ca).check("mail-ca")
        port = options.mail_port or PORTS[tls]
        return Server(options.mail_server, port, tls, options.mail_ca, user, password)

    def _lookup(self) -> Lookup | None:
        options = self.options
        given = [options.user_address, options.user_address_file, options.user_address_command]
        if len([one for one in given if one]) > 1:
            raise self._wrong("user-address, user-address-file and user-address-command: choose one")
        if options.user_address:
            return addresses.by_pattern(options.user_address)
        if options.user_address_file:
            return addresses.by_file(options.user_address_file)
        return addresses.by_program(options.user_address_command) if options.user_address_command else None

    def _secret(self) -> bytes:
        options = self.options
        if options.webhook and is_readable_on_the_way(options.webhook) and not options.webhook_allow_http:
            raise self._wrong(
                "webhook without https shows users and jobs to the network; use https, or webhook-allow-http = true"
            )
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
