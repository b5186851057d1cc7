"""Notify the service manager of the daemon: sd_notify(3) of systemd, and others with its protocol."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, MutableMapping

from colmet.common.daemon.logs import powers_of_ten

log = logging.getLogger(__name__)

STATUS_S = 10.0  # between two status lines
MAX_STATUS = 200  # characters
WAIT_S = 2.0  # for a busy service manager, which kills a daemon that does not report its start
AGAIN_S = 1.0  # until the next retry to notify the watchdog


class Service:
    """Notifies of start, state, life and end of the daemon; does nothing without a service manager.

    Args:
        address: of the service manager's socket; a name with a leading @ is an abstract one; '' for none.
        watchdog_s: the watchdog's timeout; 0 without a watchdog.
        monotonic: seconds.
    """

    def __init__(
        self, address: str = "", watchdog_s: float = 0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._interval_s = watchdog_s / 2 if address and watchdog_s > 0 else math.inf
        self._monotonic = monotonic
        self._alive_at = monotonic() + self._interval_s
        self._status_at = -math.inf
        self._failures = 0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Service:
        """Return the service of the environment, and remove its variables: no started program may use them."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        if address and address[0] not in "/@":
            log.warning(
                "NOTIFY_SOCKET=%.100r is neither a path nor an abstract name: the service manager gets no reports",
                address,
            )
            address = ""
        ours = not pid or pid == str(os.getpid())
        is_number = watchdog_us.isascii() and watchdog_us.isdigit() and len(watchdog_us) < 20
        return cls(address, int(watchdog_us) / 1e6 if ours and is_number else 0)

    def ready(self) -> None:
        """Notify that the daemon works; also after `reloading`."""
        self._send("READY=1", WAIT_S)

    def reloading(self) -> None:
        """Notify that the daemon reads its configuration again, until `ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", WAIT_S)

    def status(self, make: Callable[[], str]) -> None:
        """Send the state, a line; `make` is called only when the next one is due."""
        now = self._monotonic()
        if self._socket is not None and now >= self._status_at:
            self._status_at = now + STATUS_S
            self._send(f"STATUS={' '.join(make().split())[:MAX_STATUS]}")

    def alive(self) -> None:
        """Notify the watchdog when due: the main thread works."""
        now = self._monotonic()
        if now >= self._alive_at:
            self._alive_at = now + (self._interval_s if self._send("WATCHDOG=1") else min(AGAIN_S, self._interval_s))

    def delay_s(self) -> float:
        """Return the seconds until the next call of `alive` is due; infinite without a watchdog."""
        return max(0.0, self._alive_at - self._monotonic())

    def stopping(self) -> None:
        """Notify that the daemon ends."""
        self._send("STOPPING=1", WAIT_S)

    def close(self) -> None:
        """Close; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str, wait_s: float = 0) -> bool:
        """Send a message; return whether that succeeded within the time."""
        if self._socket is None:
            return True
        try:
            self._socket.settimeout(wait_s)
            self._socket.sendto(text.encode(), self._address)
        except OSError as err:
            self._failures += 1
            if powers_of_ten(self._failures):
                log.warning("service manager cannot be notified failures=%d %s: %s", self._failures, text[:40], err)
            return False
        return True
