"""Build answers: JSON, compressed if large, with the headers of all answers."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PACKED_BYTES = 1024  # shorter answers are not compressed
LEVEL = 4  # of gzip: higher ones are slow and save little
_FIELDS = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
    "Vary": "Accept-Encoding, Authorization",
}
ENVELOPED = ("/qhost", "/qstat")  # prefixes of paths
# All resources are from this server; no other page may frame it, send forms to it, or read it.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_GZIP = re.compile(r"(?:gzip|\*)\s*(?:;\s*q\s*=\s*([0-9.]{1,8})\s*)?")


def allows_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
    for part in accepted[:1000].split(","):
        match = _GZIP.fullmatch(part.strip().lower())
        if match:
            return match[1] is None or match[1].strip("0.") != ""
    return False


def to_json(content: Any) -> bytes:
    """Return JSON, with null for each NaN and infinity."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    except ValueError:  # rare, so NaN is replaced only then
        text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"), default=_plain)
    return text.encode("ascii")


def answer(content: Any, packed: bool = False, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON, compressed if `packed` and large."""
    return pack(to_json(content), packed, status, headers)


def pack(body: bytes, packed: bool, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with a body in JSON."""
    fields = {**_FIELDS, **(headers or {})}
    if packed and len(body) >= PACKED_BYTES:
        body = gzip.compress(body, LEVEL, mtime=0)
        fields["Content-Encoding"] = "gzip"
    return Response(body, status, fields)


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
