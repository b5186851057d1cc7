"""A real SMTP server, aiosmtpd, as a process of its own: it keeps mails, and refuses some recipients.

A process of its own, as some of its imports are deprecated on the newest Python.
"""

from __future__ import annotations

import contextlib
import email
import email.policy
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.waiting import free_port

GONE, LATER, SPAM = "gone", "later", "spam"  # recipients that begin so are refused for good, for now; their mails
LOGIN = ("colmet", "secret word")


class Received(NamedTuple):
    """A mail."""

    sender: str
    recipients: list
    login: str
    tls: bool  # begun with STARTTLS
    mail: email.message.EmailMessage

    @property
    def text(self):
        return self.mail.get_content().replace("\r\n", "\n")


class SmtpServer:
    """The server; with a certificate and its key it offers STARTTLS, and requires it and a login."""

    def __init__(self, folder, certificate=(), implicit_tls=False):
        self.port = free_port()
        self._mails = Path(folder) / f"mails-{self.port}.jsonl"
        self._mails.touch()
        words = [str(self.port), str(self._mails), "tls" if implicit_tls else "starttls", *certificate]
        self.process = subprocess.Popen([sys.executable, "-W", "ignore", __file__, *words], stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.process.kill()
        self.process.communicate(timeout=30)

    @property
    def mails(self):
        """All mails so far."""
        found = []
        for line in self._mails.read_text().splitlines():
            one = json.loads(line)
            mail = email.message_from_string(one.pop("content"), policy=email.policy.default)
            found.append(Received(**one, mail=mail))
        return found

    def clear(self):
        self._mails.write_text("")


def serve(port, path, kind, *certificate):
    """Run the server until it is killed."""
    import ssl

    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult

    class Handler:
        async def handle_RCPT(self, _server, _session, envelope, address, _options):  # noqa: N802
            for word, reply in ((GONE, "550 no such user"), (LATER, "450 try again later")):
                if address.startswith(word):
                    return reply
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, _server, session, envelope):  # noqa: N802
            if envelope.rcpt_tos[0].startswith(SPAM):
                return "554 looks like spam"
            login = session.auth_data.login.decode() if session.auth_data else ""
            mail = {"sender": envelope.mail_from, "recipients": envelope.rcpt_tos, "login": login}
            line = json.dumps({**mail, "tls": session.ssl is not None, "content": envelope.content.decode()})
            with open(path, "a") as file:
                file.write(f"{line}\n")
            return "250 OK"

    def authenticate(_server, _session, _envelope, _mechanism, data):
        is_right = (data.login.decode(), data.password.decode()) == LOGIN
        return AuthResult(success=is_right, handled=False, auth_data=data)

    context = None
    options = {}
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        options = {"authenticator": authenticate, "auth_required": True}
    if kind == "tls":
        options.update(ssl_context=context, auth_require_tls=False)
    elif certificate:
        options.update(tls_context=context, require_starttls=True)
    controller = Controller(Handler(), hostname="127.0.0.1", port=int(port), **options)
    controller.start()
    print("ready", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(3600)


if __name__ == "__main__":
    serve(*sys.argv[1:])
