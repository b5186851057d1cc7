"""Configurations pushed by the Rust node's senders to port 5557 of the node; the senders get no answer.

The messages and their handler are those of the control socket.
"""

from __future__ import annotations

import logging
import threading
import time

from colmet.common.config import cli
from colmet.common.daemon import control
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.transport import Pull
from colmet.common.wire.control import MAX_REQUEST_BYTES, decode_answer
from colmet.node.live_config import Remote

log = logging.getLogger(__name__)

OPTION = "--enable-rust-configuration"
DEFAULT_URI = "tcp://127.0.0.1:5557"  # hard-coded in the senders
LOOPBACK = ("tcp://127.", "tcp://[::1]:", "tcp://localhost:", "ipc:")
QUEUE = 10
WAIT_S = 60.0


def add_options(parser: cli.Options) -> None:
    """Declare --enable-rust-configuration."""
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


class RustPort:
    """Receiver of pushed configurations, in a thread of its own, until `close`.

    Args:
        uri: to bind.
        asked: answers requests.

    Raises:
        ConfigError: the URI cannot be bound.
    """

    def __init__(self, uri: str, asked: control.Control) -> None:
        self._remote = Remote(asked, is_known=True, way=f"from {OPTION}")
        self._requests = self._refused = 0
        self._ended = threading.Event()
        # twice the limit of a message: one slightly too large is still received, refused and counted
        self._pull = Pull(uri, QUEUE, option=OPTION, max_bytes=2 * MAX_REQUEST_BYTES)
        self.uri = self._pull.uri
        if self.uri.startswith(LOOPBACK):
            log.warning("any user of this machine can change the sample period and the perf events uri=%s", self.uri)
        else:
            log.warning(
                "any host that reaches this port can change the sample period and the perf events uri=%s", self.uri
            )
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
                time.sleep(max(control.MIN_REST_S, control.REST_SHARE * (time.thread_time() - began)))

    def close(self) -> None:
        """Stop receiving; can be called twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(2 * control.ERRAND_S)
        if not self._thread.is_alive():  # else its resources cannot be released
            self._pull.close()
            self._wakeup.close()
