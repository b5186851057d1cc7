"""A server for tests, of /qhost and /qstat or others: it answers what a test wants, and notes what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data/mem"


class Server(ThreadingHTTPServer):
    """Answers by path, else `otherwise`: bytes of status 200, (status, headers, bytes), or a function of the handler.

    A function may return one of the others, or answer itself.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.ended = threading.Event()  # for an answer that has to wait for the end of the test
        self.otherwise: Any = (404, {}, b"")
        self.answers: dict[str, Any] = {f"/{name}": (DATA / f"{name}.json").read_bytes() for name in ("qhost", "qstat")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""

    @property
    def place(self) -> str:
        """Where it is, as HOST:PORT."""
        return f"127.0.0.1:{self.server_address[1]}"

    def tell(self, name: str, data: Any) -> None:
        """Answer this, as data of an envelope."""
        self.answers[f"/{name}"] = json.dumps({"success": True, "message": "", "data": data}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        answer = self.server.answers.get(self.path, self.server.otherwise)
        if callable(answer):
            answer = answer(self)
        if answer is None:
            return
        status, headers, body = answer if isinstance(answer, tuple) else (200, {}, answer)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: it would be on the standard error of the tests."""


@contextlib.contextmanager
def serving(context: Any = None) -> Iterator[Server]:
    """A server that listens, with TLS where there is a context for it."""
    with Server() as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
