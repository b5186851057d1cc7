"""Build answers in JSON, and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_FIELDS = {"Content-Type": "application/json", "Cache-Control": "no-store", "Vary": "Authorization, Cookie"}
ENVELOPED = ("/qhost", "/qstat")  # prefixes of paths


def to_json(content: Any) -> bytes:
    """Return JSON, with null for each NaN and infinity."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    except ValueError:  # rare, so NaN is replaced only then
        text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"), default=_plain)
    return text.encode("ascii")


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


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of NumPy
        return _finite(value.tolist())
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return value
