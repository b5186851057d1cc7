"""Read the files of the page once, and answer requests for them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response

from colmet.web.responses import PACKED_BYTES

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
MAX_BYTES = 4 << 20  # of one file
MAX_AGE_S = 3600
# Files of other types in the folder, such as licences, are not served.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}


class File(NamedTuple):
    """A file of the page."""

    body: bytes  # the content
    packed: bytes | None  # the content compressed by gzip; None for small files and PNG
    type: str  # the Content-Type header
    tag: str  # the ETag header; a hash of the content


def read_files(folder: Path) -> Mapping[str, File]:
    """Return the served files of a folder, by their relative paths."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix not in TYPES or not path.is_file() or path.stat().st_size > MAX_BYTES:
            continue
        body = path.read_bytes()
        packed = gzip.compress(body, 9, mtime=0) if len(body) >= PACKED_BYTES and path.suffix != ".png" else None
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        found[path.relative_to(folder).as_posix()] = File(body, packed, TYPES[path.suffix], tag)
    return found


def file_answer(file: File, packed: bool, known: str, max_age_s: int) -> Response:
    """Return the content of a file, or 304 if the header If-None-Match (`known`) names it.

    It is valid for `max_age_s` in the client's cache; 0 to revalidate each time.
    """
    kept = f"private, max-age={max_age_s}" if max_age_s else "private, no-cache"
    headers = {"Content-Type": file.type, "Cache-Control": kept, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if known == "*" or file.tag in [one.strip().removeprefix("W/") for one in known[:2000].split(",")]:
        return Response(b"", 304, headers)
    if packed and file.packed is not None:
        return Response(file.packed, 200, {**headers, "Content-Encoding": "gzip"})
    return Response(file.body, 200, headers)
