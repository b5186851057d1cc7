"""The gate of the interface, which refuses requests by form, method and login; and the login itself.

The gate adds the headers of all answers, too. The login is a form of a browser, and a token for commands.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from colmet.common.daemon.logs import powers_of_ten
from colmet.web.access import SESSION_S, Access, NoLoginToken, NotNamed, Unauthorized, Visitor, client_of
from colmet.web.interface import add_routes
from colmet.web.models import IssuedToken
from colmet.web.responses import answer, failure
from colmet.web.workers import Busy

log = logging.getLogger(__name__)

VISITOR, CLIENT, SESSION = "colmet.visitor", "colmet.client", "colmet.session"  # in a request's scope
COOKIE = "colmet-session"
LOGIN, SIGN_OUT, TOKEN = "/login", "/sign-out", "/api/v1/token"
MAX_TARGET = 8192  # bytes of path and query
MAX_HEADERS, MAX_HEADERS_BYTES = 100, 16384
MAX_FORM = 8192  # bytes of the form of the login
CLOSE = {"Connection": "close"}
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="Colmet"'}  # a browser would ask for Basic authentication by a window
# All resources are from this server; no other page may frame it, send forms to it, or read it.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # of the page's files
}
_ADDED = [(key.lower().encode("ascii"), value.encode("ascii")) for key, value in HEADERS.items()]


@dataclass(eq=False)
class Gate:
    """An ASGI application around another one, which answers the accepted requests."""

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        began = False

        async def send_on(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                status = message["status"]
                self.access.stats.add(f"requests_{status // 100}xx")
                if status in (401, 429):
                    self.access.stats.add("unauthorized" if status == 401 else "too_many")
                given = message.get("headers", [])
                names = {key.lower() for key, _ in given}
                message = {**message, "headers": [*given, *[one for one in _ADDED if one[0] not in names]]}
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            try:
                await send(message)
            except Exception as err:  # uvicorn has closed the connection because of data after the head
                self.access.stats.add("broken_connections")
                raise ClientDisconnect from err

        try:
            refusal = await self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send_on)
            else:
                await self.app({**scope, "method": "GET"} if is_head else scope, receive, send_on)
        except (ClientDisconnect, asyncio.CancelledError):  # the client is gone, or the server ends
            return
        except Exception:
            count = self.access.stats.add("defects")
            if powers_of_ten(count):
                log.exception("an answer failed, which is a defect: path=%.200r times=%d", scope["path"], count)
            if not began:
                await failure(500, "this is a defect of Colmet; see the log of colmet-web", CLOSE)(
                    scope, receive, send_on
                )

    async def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if accepted, with its visitor and client in the scope."""
        headers, path = scope["headers"], scope["path"]
        is_post = scope["method"] == "POST" and path in (LOGIN, SIGN_OUT, TOKEN)
        if scope["http_version"] not in ("1.1", "1.0"):
            return failure(400, "only HTTP/1.1 and HTTP/1.0 are spoken here", CLOSE)
        if len(headers) > MAX_HEADERS or sum([len(key) + len(value) for key, value in headers]) > MAX_HEADERS_BYTES:
            text = f"a request has at most {MAX_HEADERS} headers of {MAX_HEADERS_BYTES} bytes in all"
            return failure(400, text, CLOSE)
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET:
            return failure(400, f"path and query have at most {MAX_TARGET} bytes", CLOSE)
        sizes = [value for key, value in headers if key == b"content-length" and value != b"0"]
        is_form = is_post and path == LOGIN and len(sizes) == 1 and sizes[0].isdigit() and int(sizes[0]) <= MAX_FORM
        if (sizes and not is_form) or any(key == b"transfer-encoding" for key, _ in headers):
            return failure(400, "a request has no body here", CLOSE)
        if not is_post and scope["method"] not in ("GET", "HEAD"):
            return failure(405, "only GET and HEAD are answered here", {"Allow": "GET, HEAD"})
        if is_post and not _is_own_page(scope):
            return failure(403, "another page has sent this request")
        if path.startswith("/static/") and "\0" in path:
            return failure(404, "there is no such page")
        # Old versions of Starlette compare names of hosts as they are written.
        scope["headers"] = [(key, value.lower() if key == b"host" else value) for key, value in headers]
        scope[CLIENT], scope[SESSION] = client_of(scope), _cookie(scope)
        # The page itself has no data; its requests have.
        if path in ("/", LOGIN, SIGN_OUT) or path.startswith("/static/"):
            return None
        try:
            given = [value.decode("latin-1") for key, value in headers if key == self.access.header]
            if path != TOKEN:
                scope[VISITOR] = await self.access.visitor(given, scope[CLIENT], scope[SESSION])
        except NotNamed as err:
            return failure(403, str(err))
        except Unauthorized:
            return unauthorized()
        except Busy as err:
            return too_many(err)
        return None


def _is_own_page(scope: Mapping[str, Any]) -> bool:
    """Return whether a POST is from a page of this server, or from no page at all.

    Browsers name the page's relation to the server over HTTPS and at localhost, else its address alone.
    """
    given = {key: value.decode("latin-1") for key, value in scope["headers"]}
    relation = given.get(b"sec-fetch-site")
    if relation is not None:
        return relation in ("same-origin", "none")
    origin = given.get(b"origin")
    # A proxy may name itself in Host.
    if origin is None or scope.get("client") is None:
        return True
    try:
        return bool(urlsplit(origin).netloc == given.get(b"host"))
    except ValueError:  # no address
        return False


def _cookie(scope: Mapping[str, Any]) -> str:
    """Return the session of a request; "" without one."""
    cookies: SimpleCookie = SimpleCookie()
    try:
        for text in [value.decode("latin-1") for key, value in scope["headers"] if key == b"cookie"]:
            cookies.load(text)
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def visitor_of(scope: Mapping[str, Any]) -> Visitor:
    """Return the user of an accepted request."""
    return cast(Visitor, scope[VISITOR])


def unauthorized() -> Response:
    """Return the answer 401."""
    return failure(401, "give a name and a password, or a token, that this interface knows", CHALLENGE)


def too_many(err: Busy) -> Response:
    """Return the answer 429."""
    return failure(429, str(err), {"Retry-After": str(max(1, math.ceil(err.after_s)))})


FOLDER = Path(__file__).parent / "static"  # of the page
WRONG = "This name and this password are not known together."


@dataclass(eq=False)
class LoginRoutes:
    """The handlers, one method for each path."""

    access: Access

    def add_to(self, app: Any) -> None:
        """Add the routes to an application."""
        add_routes(app, [(TOKEN, self.token, IssuedToken, True)], method="POST")
        hidden = {"include_in_schema": False}
        app.add_api_route(LOGIN, self.form, methods=["GET"], **hidden)
        app.add_api_route(LOGIN, self.log_in, methods=["POST"], **hidden)
        app.add_api_route(SIGN_OUT, self.sign_out, methods=["POST"], **hidden)

    async def form(self, request: Request) -> Response:
        """Return the form; without a file of users, go to the page."""
        return _page() if self.access.names is not None else RedirectResponse("./", 303)

    async def log_in(self, request: Request) -> Response:
        """Begin a session for the name and the password of the form."""
        try:
            given = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)
        except ValueError:  # more fields than the form has
            return _page(401, WRONG)
        name, password = [given.get(key, [""])[0] for key in ("name", "password")]
        try:
            session, _ = await self.access.log_in(name.strip(), password, request.scope[CLIENT])
        except NoLoginToken:
            return RedirectResponse("./", 303)
        except Unauthorized:
            return _page(401, WRONG, name)
        except Busy as err:
            response = _page(429, f"{str(err).capitalize()}.", name)
            response.headers["Retry-After"] = too_many(err).headers["Retry-After"]
            return response
        response = RedirectResponse("./", 303)
        # The browser's connection has TLS by the proxy's word; without it, behind a Unix socket.
        secure = request.headers.get("x-forwarded-proto", "http" if request.client else "https") == "https"
        response.set_cookie(COOKIE, session, int(SESSION_S), secure=secure, httponly=True, samesite="strict")
        return response

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self.access.end(request.scope[SESSION])
        response = RedirectResponse("login", 303)
        response.delete_cookie(COOKIE)
        return response

    async def token(self, request: Request) -> Response:
        """Return a token for the name and the password of the request, for later requests without the password."""
        given = request.headers.getlist("authorization")
        try:
            token, until = await self.access.login_token(given, request.scope[CLIENT])
        except NoLoginToken as err:
            raise HTTPException(404, str(err)) from None
        except Unauthorized:
            return unauthorized()
        return answer({"token": token, "until": until})


def _page(status: int = 200, error: str = "", name: str = "") -> Response:
    headers = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
    page = (FOLDER / "login.html").read_text()
    return Response(page.format(error=escape(error), name=escape(name)), status, headers)
