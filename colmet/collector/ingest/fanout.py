"""Fan-out of requests: one request to many nodes over the link, and their answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from colmet.collector.ingest.link import CollectorLink
from colmet.common.daemon.control import ERRAND_S, Errands, Handler
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import Refused, WireError
from colmet.common.wire.control import Request, decode_answer, encode

log = logging.getLogger(__name__)

WAIT_S = ERRAND_S + 2.5  # for the nodes: the deadline of an errand, 1.5 s until a node reads the link, and the way
MAX_ANSWER_BYTES = 16 << 10  # of one node
MAX_REQUESTS = 8
MAX_REASON = 1000  # characters


@dataclass
class FanoutRequest:
    """A request in progress."""

    number: int  # on the link
    waiting: set[str] = field(default_factory=set)  # hosts without an answer so far
    answers: dict[str, bytes] = field(default_factory=dict)  # by host
    away: list[str] = field(default_factory=list)  # hosts without a connection
    is_done: threading.Event = field(default_factory=threading.Event)  # set when all hosts have answered


class Fanout:
    """Sender of requests to many nodes, and collector of their answers. For the thread of the link.

    Attributes:
        late: answers received after the end of their request.
    """

    def __init__(self) -> None:
        self.late = 0
        self._number = time.time_ns() // 1000  # above those of an earlier collector: late answers to it may still come
        self._requests: dict[int, FanoutRequest] = {}

    def begin(self, link: CollectorLink, content: bytes, hosts: Iterable[str] | None) -> FanoutRequest:
        """Send a request to these hosts, or to all connected ones."""
        self._number += 1
        begun = self._requests[self._number] = FanoutRequest(self._number)
        for host in sorted(set(link.callers if hosts is None else hosts)):
            if link.ask(host, self._number, content):
                begun.waiting.add(host)
            else:
                begun.away.append(host)
        if not begun.waiting:
            begun.is_done.set()
        while len(self._requests) > MAX_REQUESTS:  # requests of disconnected clients are never ended
            self._requests.pop(min(self._requests))
        return begun

    def answered(self, host: str, number: int, content: bytes) -> None:
        """Note an answer."""
        found = self._requests.get(number)
        if found is None or host not in found.waiting:
            self.late += 1
            if powers_of_ten(self.late):
                log.warning("late answer of a node, nothing waits for it host=%s late=%d", host, self.late)
            return
        found.waiting.remove(host)
        found.answers[host] = content if len(content) <= MAX_ANSWER_BYTES else b""
        if not found.waiting:
            found.is_done.set()

    def end(self, ended: FanoutRequest) -> FanoutRequest:
        """End a request: later answers do not change it."""
        self._requests.pop(ended.number, None)
        return ended


def summary(ended: FanoutRequest) -> dict[str, Any]:
    """Return the result of a request to configure: nodes changed, unchanged, refusing (by reason), silent and away."""
    changed: list[str] = []
    unchanged: list[str] = []
    refused: dict[str, list[str]] = {}
    for host, content in ended.answers.items():
        try:
            answer = decode_answer(content)
        except WireError as err:
            answer = {"error": f"its answer cannot be read: {err}"}
        if answer.get("ok") is not True:
            parts = answer.get("refused")
            why = "; ".join(f"{key}: {value}" for key, value in parts.items()) if isinstance(parts, dict) else ""
            reason = "".join(c if c.isprintable() else "?" for c in (why or str(answer.get("error")))[:MAX_REASON])
            refused.setdefault(reason, []).append(host)
        if answer.get("changed"):
            changed.append(host)
        elif answer.get("ok") is True:
            unchanged.append(host)
    return {
        "ok": not (refused or ended.waiting or ended.away),
        "changed": sorted(changed),
        "unchanged": sorted(unchanged),
        "refused": {why: sorted(hosts) for why, hosts in refused.items()},
        "silent": sorted(ended.waiting),
        "away": ended.away,
    }


def handler(fanout: Fanout, link: CollectorLink | None, errands: Errands, wait_s: float = WAIT_S) -> Handler:
    """Return a handler of `configure` for all nodes or those in `hosts`, separated by commas; not for the main thread.

    Without a link it refuses the request.
    """

    def configure(request: Request) -> dict[str, Any]:
        if link is None or not link.is_open:
            raise Refused(
                "this collector has no port where it speaks with nodes: see its log, and --zeromq-link-bind-uri"
            )
        names = request.get("hosts")
        if names is not None and not isinstance(names, str):
            raise Refused("hosts: not a text")
        hosts = None if names is None else [name for name in names.split(",") if name]
        content = encode({key: value for key, value in request.items() if key != "hosts"})
        begun = errands.call(lambda: fanout.begin(link, content, hosts))
        begun.is_done.wait(wait_s)
        return summary(errands.call(lambda: fanout.end(begun)))

    return configure
