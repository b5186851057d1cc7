"""Change the sample period or the perf events of a running node, by the requests of the Rust node.

The request is a map: `sample_period`, in seconds, and `metrics` or `perfhw_metrics`, a list of events with commas, each
`name` or `name:period:job_id`. Each of the two is applied, or refused with a reason. It lasts until the node's next
start, or until its configuration file is read again.

It comes from `colmet configure`, from a collector over the link, or from a sender of the Rust node to port 5557.
"""

from __future__ import annotations

import argparse
import functools
import logging
import threading
import time
from typing import Any

from colmet.common.config import cli
from colmet.common.config.configuration import Settings
from colmet.common.daemon.control import ERRAND_S, MIN_REST_S, REST_SHARE, RUST_COMMAND, Control, Errands, Handler
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.errors import ConfigError, Refused, WireError
from colmet.common.transport import Pull
from colmet.common.wire.control import MAX_REQUEST_BYTES, Request, decode_answer, decode_request, encode
from colmet.node.kernel import perfevents

log = logging.getLogger(__name__)

OPTION = "--enable-rust-configuration"
DEFAULT_URI = "tcp://127.0.0.1:5557"  # hard-coded in the senders
LOOPBACK = ("tcp://127.", "tcp://[::1]:", "tcp://localhost:", "ipc:")
QUEUE = 10
WAIT_S = 60.0
_EVENTS = ("metrics", "perfhw_metrics")
_NAMES = {"sample_period": "sample_period", "perfhw_list": "metrics"}  # of options, in requests


def add_options(parser: cli.Options) -> None:
    """Declare --allow-remote-configure and --enable-rust-configuration."""
    parser.add_argument(
        "--allow-remote-configure",
        action="store_true",
        help=cli.Rare(
            "accept changes of the sample period and perf events from the collector without keys, too; any machine "
            "with the collector's address can then make them (default: only with keys)"
        ),
    )
    parser.add_argument(
        OPTION,
        metavar="URI",
        nargs="?",
        const=DEFAULT_URI,
        help=cli.Rare(
            "accept changes of the sample period and perf events from clients of the Rust node; without a login: any "
            f"user of this machine can make them (default: off; without URI: {DEFAULT_URI})"
        ),
    )


def parse(request: Request) -> dict[str, Any]:
    """Return the options in a request, by their names in argparse; Refused if a key or a value is wrong."""
    values: dict[str, Any] = {}
    for key, value in request.items():
        if key == "command":
            continue
        if key not in ("sample_period", *_EVENTS):
            raise Refused(f"{key}: cannot be changed; there are sample_period and {' or '.join(_EVENTS)}")
        try:
            if key == "sample_period":
                values["sample_period"] = cli.positive_seconds(_text(value))
            else:
                if "perfhw_list" in values:
                    raise ConfigError("given twice, by two names")
                texts = perfevents.split_choices(_text(value))
                values["perfhw_list"] = [perfevents.choice_text(perfevents.parse_choice(text)) for text in texts]
        except (argparse.ArgumentTypeError, ConfigError) as err:
            raise Refused(f"{key}: {err}") from err
    if not values:
        raise Refused(f"nothing to change; give sample_period or {' or '.join(_EVENTS)}")
    return values


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[: perfevents.MAX_TEXT + 1]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    raise ConfigError("neither a text nor a number")


def change(settings: Settings, values: dict[str, Any]) -> dict[str, Any]:
    """Apply new values, in the main thread; return the answer to the request.

    Each value that is possible is applied, as by a node of Rust; the answer has the reason for each of the others. If
    none is possible, it is Refused.
    """
    changes: dict[str, list[Any]] = {}
    unchanged: list[str] = []
    refused: dict[str, str] = {}
    for option, value in values.items():
        name = _NAMES[option]
        try:
            if option == "perfhw_list" and option not in settings:
                raise ConfigError("perf events are not counted on this node; start it with --enable-perfhw")
            changed = settings.change({option: value})
        except ConfigError as err:
            refused[name] = str(err)
            continue
        if changed:
            changes[name] = [",".join(part) if isinstance(part, list) else part for part in changed[option]]
        else:
            unchanged.append(name)
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    if not changes and not unchanged:
        raise Refused(reasons)
    if changes:
        log.info("configuration changed on request: %s", "; ".join(f"{k}: {a} -> {b}" for k, (a, b) in changes.items()))
    if refused:
        log.warning("part of a requested configuration is not possible here: %s", reasons)
    return {
        "ok": not refused,
        "changed": changes,
        "unchanged": unchanged,
        "refused": refused,
        "lasts": "until the next start, or SIGHUP",
    }


def handler(settings: Settings, errands: Errands) -> Handler:
    """Return the handler of `configure`, for any thread: the change itself is made between two ticks."""
    return lambda request: errands.call(functools.partial(change, settings, parse(request)))


class Remote:
    """Requests from other machines: `configure`, and nothing else.

    Args:
        control: answers them.
        is_known: whether the client is authenticated as the collector, or need not be.
        way: the connection, for errors.
    """

    def __init__(self, control: Control, is_known: bool, way: str = "over the link") -> None:
        self._control = control
        self._is_known = is_known
        self._way = way
        self._requests = self._refused = 0

    def counters(self) -> dict[str, int]:
        """Return the numbers of requests, and of those refused before they were handled."""
        return {"requests": self._requests, "refused": self._refused}

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request, both as bytes; a wrong request has an answer, too."""
        self._requests += 1
        why = ""
        if not self._is_known:
            why = (
                "this node has no keys, so it cannot authenticate the sender; give it keys (--zeromq-curve-...), or "
                "start it with --allow-remote-configure"
            )
        else:
            try:
                if decode_request(content).get("command", RUST_COMMAND) != RUST_COMMAND:
                    why = f"{self._way} there is {RUST_COMMAND} alone"
            except WireError as err:
                why = str(err)
        if not why:
            return self._control.answer(content)
        self._refused += 1
        if powers_of_ten(self._refused):
            log.warning("change of the configuration refused %s refused=%d: %.300s", self._way, self._refused, why)
        return encode({"error": why[:1000]})


class RustPort:
    """Receiver of configurations pushed by the Rust node's senders, in a thread of its own; they get no answer."""

    def __init__(self, uri: str, asked: Control) -> None:
        self._remote = Remote(asked, is_known=True, way=f"from {OPTION}")
        self._requests = self._refused = 0
        self._ended = threading.Event()
        # twice the limit of a message: one slightly too large is still received, refused and counted
        self._pull = Pull(uri, QUEUE, option=OPTION, max_bytes=2 * MAX_REQUEST_BYTES)
        self.uri = self._pull.uri
        who = "user of this machine" if self.uri.startswith(LOOPBACK) else "host that reaches this port"
        log.warning("any %s can change the sample period and the perf events uri=%s", who, self.uri)
        self._wakeup = Wakeup()
        self._pull.wake_on(self._wakeup.fd)
        self._thread = threading.Thread(target=self._run, name="rust-port", daemon=True)

    def start(self) -> None:
        """Start to receive messages."""
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Return the numbers of messages, and of refused ones: unreadable, or not possible."""
        return {"requests": self._requests, "refused": self._refused}

    def _run(self) -> None:
        while not self._ended.is_set():
            self._pull.wait(WAIT_S)
            while not self._ended.is_set() and (received := self._pull.receive()) is not None:
                began = time.thread_time()
                self._requests += 1
                self._refused += decode_answer(self._remote.answer(received.message)).get("ok") is not True
                time.sleep(max(MIN_REST_S, REST_SHARE * (time.thread_time() - began)))

    def close(self) -> None:
        """Stop receiving; can be called twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(2 * ERRAND_S)
        if not self._thread.is_alive():  # else its resources cannot be released
            self._pull.close()
            self._wakeup.close()
