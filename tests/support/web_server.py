"""Shared by tests: running."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading

from colmet.common.runtime.metrics_http import ListenAddress
from colmet.web.access import Access
from colmet.web.server import WebServer

# up to Python 3.10 asyncio complains of connections whose handshake failed, though it has closed them
OLD_TLS = sys.version_info < (3, 11)


HERE = ListenAddress("127.0.0.1", 0)


@contextlib.contextmanager
def running(facts, listen=HERE, access=None, **options):
    server = WebServer(listen, facts, access or Access(None), **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
        if OLD_TLS and "tls" in options:
            gc.collect()
