"""Build answers in JSON, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from colmet.jobs.report.document import to_json

_FIELDS = {"Content-Type": "application/json", "Cache-Control": "no-store", "Vary": "Authorization, Cookie"}
ENVELOPED = ("/qhost", "/qstat")  # prefixes of paths


def answer(content: Any) -> Response:
    """Return an answer in JSON."""
    return encoded(to_json(content))


def encoded(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with a body that is JSON, or what `headers` say."""
    return Response(body, 200, {**_FIELDS, **(headers or {})})


def failure(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error; for the paths of QmemTools' server also in its envelope."""
    return _ErrorResponse(text, status, {**_FIELDS, **(headers or {})})


class _ErrorResponse(Response):
    """An error with a body depending on the path of the request."""

    def render(self, content: Any) -> bytes:
        self._text = str(content)
        return to_json({"error": self._text})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(ENVELOPED):
            envelope = {"success": False, "message": self._text, "data": {}}
            self.body = to_json({**envelope, "error": self._text})
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
