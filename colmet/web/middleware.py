"""Check every request for bounds, method and login; add headers to its answer, and answer 500 for a defect."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.metrics_http import is_known
from colmet.web.access import SIGN_OUT, Access, NotNamed, Unauthorized, Visitor
from colmet.web.limits import Busy
from colmet.web.responses import HEADERS, failure
from colmet.web.sign_out import CHALLENGES, sign_out_answer

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

VISITOR, CLIENT = "colmet.visitor", "colmet.client"  # in a request's scope
MAX_TARGET = 8192  # bytes of path and query
MAX_HEADERS = 100
MAX_HEADERS_BYTES = 16384
VERSIONS = ("1.1", "1.0")
METHODS = ("GET", "HEAD")
CLOSE = {"Connection": "close"}
_ADDED = [(key.lower().encode("ascii"), value.encode("ascii")) for key, value in HEADERS.items()]


class RequestFilter:
    """An ASGI application around another one.

    Args:
        app: answers the accepted requests.
        access: authenticates requests.
        hosts: names allowed in the Host header, besides addresses; None for any name. Protects an open interface for
            this machine only from web pages with a name that resolves to this machine (DNS rebinding).
        client: returns the client of a request from its scope.
    """

    def __init__(
        self,
        app: App,
        access: Access,
        hosts: frozenset[str] | None,
        client: Callable[[Scope], str],
    ) -> None:
        self._app = app
        self._access = access
        self._stats = access.stats
        self._hosts = hosts
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        began = False

        async def send_on(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                self._count(message["status"])
                given = message.get("headers", [])
                names = {key for key, _ in given}
                message = {**message, "headers": [*given, *[one for one in _ADDED if one[0] not in names]]}
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            try:
                await send(message)
            except Exception as err:  # uvicorn has closed the connection because of data after the head
                self._stats.add("broken_connections")
                raise ClientDisconnect from err

        try:
            refusal = await self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send_on)
            else:
                await self._app({**scope, "method": "GET"}, receive, send_on)
        except (ClientDisconnect, asyncio.CancelledError):  # the client is gone, or the server ends
            return
        except Exception:
            count = self._stats.add("defects")
            if powers_of_ten(count):
                log.exception("an answer failed, which is a defect: path=%.200r times=%d", scope["path"], count)
            if not began:
                await failure(500, "this is a defect of Colmet; see the collector's log", CLOSE)(
                    scope, receive, send_on
                )

    async def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if accepted, with its visitor and client in the scope."""
        headers = scope["headers"]
        if scope["http_version"] not in VERSIONS:
            return failure(400, "only HTTP/1.1 and HTTP/1.0 are spoken here", CLOSE)
        size = sum([len(key) + len(value) for key, value in headers])
        if len(headers) > MAX_HEADERS or size > MAX_HEADERS_BYTES:
            text = f"a request has at most {MAX_HEADERS} headers of {MAX_HEADERS_BYTES} bytes in all"
            return failure(400, text, CLOSE)
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET:
            return failure(400, f"path and query have at most {MAX_TARGET} bytes", CLOSE)
        if any(key == b"transfer-encoding" or (key == b"content-length" and value != b"0") for key, value in headers):
            return failure(400, "a request has no body here", CLOSE)
        if scope["method"] not in METHODS:
            return failure(405, "only GET and HEAD are answered", {"Allow": ", ".join(METHODS)})
        if self._hosts is not None:
            given = [value for key, value in headers if key == b"host"]
            if not all(is_known(value.decode("latin-1"), self._hosts) for value in given):
                text = "use an address or the name of this machine: an open interface answers to no other name"
                return failure(400, text, CLOSE)
        try:
            given = [value.decode("latin-1") for key, value in headers if key == self._access.header]
            if scope["path"] == SIGN_OUT and self._access.names is not None:
                return sign_out_answer(given)
            scope[CLIENT] = self._client(scope)
            scope[VISITOR] = await self._access.visitor(given, scope[CLIENT])
        except NotNamed as err:
            return failure(403, str(err))
        except Unauthorized:
            response = failure(401, "give a name and a password, or a token, that this interface knows")
            for challenge in CHALLENGES:
                response.headers.append("WWW-Authenticate", challenge)
            return response
        except Busy as err:
            return too_many(err)
        return None

    def _count(self, status: int) -> None:
        self._stats.add(f"requests_{status // 100}xx")
        if status == 401:
            self._stats.add("unauthorized")
        elif status == 429:
            self._stats.add("too_many")


def visitor_of(scope: Mapping[str, Any]) -> Visitor:
    """Return the user of an accepted request."""
    visitor: Visitor = scope[VISITOR]
    return visitor


def too_many(err: Busy) -> Response:
    """Return the answer 429."""
    return failure(429, str(err), {"Retry-After": str(max(1, math.ceil(err.after_s)))})
