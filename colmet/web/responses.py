"""Answers as bytes: JSON, packed where that is worth it, with the headers that all of them have."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PACKED_BYTES = 1024  # shorter ones are not worth it
LEVEL = 4  # of gzip: more takes long and saves little
JSON = "application/json"
ENVELOPED = ("/qhost", "/qstat")  # how these paths begin
NOT_KEPT = "no-store"
# Everything comes from this server, and no other page frames, sends or reads it.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_GZIP = re.compile(r"(?:gzip|\*)\s*(?:;\s*q\s*=\s*([0-9.]{1,8})\s*)?")


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header asks for gzip."""
    for part in accepted[:1000].split(","):
        match = _GZIP.fullmatch(part.strip().lower())
        if match:
            return match[1] is None or match[1].strip("0.") != ""
    return False


def to_json(content: Any) -> bytes:
    """JSON, where every number that is none becomes null."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    except ValueError:  # seldom: looked for only where there is one
        text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"), default=_plain)
    return text.encode("ascii")


def answer(content: Any, packed: bool = False, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON.

    Args:
        content: of it.
        packed: whether who asked takes gzip.
        status: of HTTP.
        headers: beside those that all have.
    """
    return pack(to_json(content), packed, status, headers)


def pack(body: bytes, packed: bool, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer whose JSON there is already."""
    told = {
        "Content-Type": JSON,
        "Cache-Control": NOT_KEPT,
        "Vary": "Accept-Encoding, Authorization",
        **(headers or {}),
    }
    if packed and len(body) >= PACKED_BYTES:
        body = gzip.compress(body, LEVEL, mtime=0)
        told["Content-Encoding"] = "gzip"
    return Response(body, status, told)


def failure(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer that says why there is none; at the addresses of QmemTools' server in its envelope, too."""
    told = {"Content-Type": JSON, "Cache-Control": NOT_KEPT, "Vary": "Accept-Encoding, Authorization"}
    return _ErrorResponse(text, status, {**told, **(headers or {})})


class _ErrorResponse(Response):
    """The body depends on the address, which only the request tells."""

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
