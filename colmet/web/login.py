"""The login of a browser, a form, and its end; and the tokens of commands."""

from html import escape
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from colmet.web.access import SESSION_S, Access, NoLoginToken, Unauthorized
from colmet.web.gate import CLIENT, COOKIE, LOGIN, SESSION, SIGN_OUT, TOKEN, too_many, unauthorized
from colmet.web.models import IssuedToken
from colmet.web.responses import answer
from colmet.web.routes import add_routes
from colmet.web.workers import Busy

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Sign in - Colmet</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="static/icon.svg" type="image/svg+xml">
<script src="static/theme.js"></script>
<link rel="stylesheet" href="static/page.css">
<script type="module" src="static/login.js"></script>
</head>
<body>
<main class="login">
<h1>Colmet</h1>
<form method="post" action="login">
<p role="alert">{error}</p>
<p><label>Name <input name="name" autocomplete="username" required autofocus value="{name}"></label></p>
<p><label>Password <input name="password" type="password" autocomplete="current-password" required></label></p>
<p><button>Sign in</button></p>
</form>
</main>
</body>
</html>
"""
WRONG = "This name and this password are not known together."


class LoginRoutes:
    """The handlers, one method for each path."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def add_to(self, app: Any) -> None:
        """Add the routes to an application."""
        add_routes(app, [(TOKEN, self.token, IssuedToken, True)], method="POST")
        hidden = {"include_in_schema": False}
        app.add_api_route(LOGIN, self.form, methods=["GET"], **hidden)
        app.add_api_route(LOGIN, self.log_in, methods=["POST"], **hidden)
        app.add_api_route(SIGN_OUT, self.sign_out, methods=["POST"], **hidden)

    async def form(self, request: Request) -> Response:
        """Return the form; without a file of users, go to the page."""
        return _page() if self._access.names is not None else RedirectResponse("./", 303)

    async def log_in(self, request: Request) -> Response:
        """Begin a session for the name and the password of the form."""
        given = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)
        name, password = [given.get(key, [""])[0] for key in ("name", "password")]
        try:
            session, _ = await self._access.log_in(name.strip(), password, request.scope[CLIENT])
        except NoLoginToken:
            return RedirectResponse("./", 303)
        except Unauthorized:
            return _page(401, WRONG, name)
        except Busy as err:
            response = _page(429, f"{str(err).capitalize()}.", name)
            response.headers["Retry-After"] = too_many(err).headers["Retry-After"]
            return response
        response = RedirectResponse("./", 303)
        secure = is_behind_tls(request)
        response.set_cookie(COOKIE, session, int(SESSION_S), secure=secure, httponly=True, samesite="strict")
        return response

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self._access.end(request.scope[SESSION])
        response = RedirectResponse("login", 303)
        response.delete_cookie(COOKIE)
        return response

    async def token(self, request: Request) -> Response:
        """Return a token for the name and the password of the request, for later requests without the password."""
        given = request.headers.getlist("authorization")
        try:
            token, until = await self._access.login_token(given, request.scope[CLIENT])
        except NoLoginToken as err:
            raise HTTPException(404, str(err)) from None
        except Unauthorized:
            return unauthorized()
        return answer({"token": token, "until": until})


def is_behind_tls(request: Request) -> bool:
    """Return whether the browser's connection has TLS: the proxy's word, and without it that of a Unix socket."""
    return request.headers.get("x-forwarded-proto", "http" if request.client else "https") == "https"


def _page(status: int = 200, error: str = "", name: str = "") -> Response:
    headers = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
    return Response(_PAGE.format(error=escape(error), name=escape(name)), status, headers)
