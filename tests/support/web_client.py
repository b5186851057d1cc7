"""Asks an ASGI application without a network."""

from __future__ import annotations

import asyncio
import atexit
import base64
import gzip
import json
from typing import NamedTuple
from urllib.parse import unquote

# One for all questions: none needs a loop of its own.
LOOP = asyncio.new_event_loop()
atexit.register(LOOP.close)


class Answer(NamedTuple):
    status: int
    headers: dict  # the last one of each name
    body: bytes

    def json(self):
        return json.loads(self.unpacked())

    def unpacked(self):
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body


def ask(app, target, headers=(), method="GET", client=("127.0.0.1", 4242), body=b""):
    return LOOP.run_until_complete(asking(app, target, headers, method, client, body))


async def asking(app, target, headers=(), method="GET", client=("127.0.0.1", 4242), body=b""):
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "root_path": "",
        "query_string": query.encode("latin-1"),
        "headers": [(key.lower().encode(), value.encode("latin-1")) for key, value in headers],
        "server": ("127.0.0.1", 80),
        "client": client,
    }
    messages = []

    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return bodies.pop() if bodies else await asyncio.Event().wait()  # the client stays

    async def send(message):
        messages.append(message)

    await app(scope, receive, send)
    start, parts = messages[0], [message.get("body", b"") for message in messages[1:]]
    found = {key.decode("latin-1"): value.decode("latin-1") for key, value in start["headers"]}
    return Answer(start["status"], found, b"".join(parts))


def basic(name, password):
    return ("Authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode())


def bearer(token):
    return ("Authorization", f"Bearer {token}")
