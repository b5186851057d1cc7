"""Shared by tests: Tls, make_certificate, running."""

from __future__ import annotations

import contextlib
import gc
import ssl
import subprocess
import sys
import threading
from typing import NamedTuple

from colmet.common.daemon.metrics_http import ListenAddress
from colmet.web.access import Access
from colmet.web.server import WebServer
from tests.support.place import require_programs

# up to Python 3.10 asyncio complains of connections whose handshake failed, though it has closed them
OLD_TLS = sys.version_info < (3, 11)


HERE = ListenAddress("127.0.0.1", 0)


class Tls(NamedTuple):
    """The files of a certificate and of its key."""

    certificate: str
    key: str


@contextlib.contextmanager
def running(facts, listen=HERE, access=None, tls=None, **options):
    """A server; with `tls` as behind a proxy that has the certificate."""
    server = WebServer(listen, facts, access or Access(None), **options)
    if tls is not None:
        server._server.config.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server._server.config.ssl.load_cert_chain(*tls)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
        if OLD_TLS and tls is not None:
            gc.collect()


def make_certificate(folder, name):
    require_programs("openssl")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days"),
        "2",
    ]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return Tls(str(certificate), str(key))
