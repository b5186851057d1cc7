"""Answer the route that ends a browser's login: Basic authentication itself has no end."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from starlette.responses import Response

# The page sends this name once. A browser keeps the last accepted name, so it forgets the login of the user.
NOBODY = "signed-out"
CHALLENGES = ('Basic realm="Colmet", charset="UTF-8"', 'Bearer realm="Colmet"')
# without a file of the page, as each of them requires a login
_PAGE = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Signed out - Colmet</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
</head>
<body>
<main>
<h1>Signed out</h1>
<p>This browser has forgotten the name and the password. <a href="./">Sign in</a></p>
</main>
</body>
</html>
"""


def sign_out_answer(authorization: Sequence[str]) -> Response:
    """Return the page that names the end of the login: status 200 for the name `signed-out`, and 401 for any other.

    A browser forgets a name and password that are answered with 401.
    """
    response = Response(
        _PAGE,
        200 if [_name(one) for one in authorization] == [NOBODY] else 401,
        {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Vary": "Authorization"},
    )
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = CHALLENGES[0]
    return response


def _name(authorization: str) -> str:
    """Return the name in a header of Basic authentication; "" without one."""
    scheme, _, value = authorization.partition(" ")
    try:
        text = base64.b64decode(value.strip().encode("ascii"), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeError):
        return ""
    return text.partition(":")[0] if scheme.lower() == "basic" else ""
