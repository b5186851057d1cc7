"""Delivery to programs: a webhook, and a command on this machine. Both get one JSON document for each run."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from colmet.common.errors import ColmetError, CommandFailed
from colmet.common.runtime.http_client import HttpClient, HttpFailure, TlsOptions
from colmet.node.system.command import Command
from colmet.notices.notice import Notice

FORM = 1  # of the document
STEP_S, DEADLINE_S = 10.0, 30.0  # of a request
COMMAND_S = 60.0
MOST_NOTICES = 1000  # in one document
SIGNATURE = "X-Colmet-Signature"


class DeliveryFailed(ColmetError):
    """A document that was not delivered; a later try may help."""


def document(notices: Sequence[Notice], cluster: str, now: float) -> bytes:
    """Return the document with notices."""
    found: dict[str, Any] = {
        "form": FORM,
        "time": int(now),
        "cluster": cluster or None,
        "notices": [notice.document() for notice in notices],
    }
    return json.dumps(found, allow_nan=False).encode()


def signature(secret: bytes, body: bytes) -> str:
    """Return the signature of a body: sha256= and the HMAC in hexadecimal digits."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def post(url: str, body: bytes, secret: bytes, tls: TlsOptions) -> None:
    """Send a document to a webhook; DeliveryFailed without a status of 2xx."""
    headers = {"Content-Type": "application/json", "User-Agent": "colmet-notices"}
    if secret:
        headers[SIGNATURE] = signature(secret, body)
    client = HttpClient(headers, tls, max_bytes=1 << 16)
    try:
        response = client.request("POST", url, body, timeout_s=STEP_S, deadline_s=DEADLINE_S)
    except HttpFailure as err:
        raise DeliveryFailed(f"webhook: {err}") from err
    finally:
        client.close()
    if not 200 <= response.status < 300:
        said = response.start.decode("utf-8", "replace")
        raise DeliveryFailed(f"webhook: status {response.status}: {said!r:.200}")


def run(argv: Sequence[str], body: bytes) -> None:
    """Run a program with a document as its standard input; DeliveryFailed unless it ends with status 0."""
    try:
        Command(argv, COMMAND_S).run_bytes(body)
    except CommandFailed as err:
        raise DeliveryFailed(f"command: {err}") from err
