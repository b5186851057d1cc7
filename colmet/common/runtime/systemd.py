"""What a daemon tells the service manager that has started it: sd_notify(3) of systemd, and whoever speaks like it."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, MutableMapping

from colmet.common.runtime.logs import powers_of_ten

log = logging.getLogger(__name__)

STATUS_S = 10.0  # between two status lines
MAX_STATUS = 200  # characters
WAIT_S = 2.0  # where the service manager is busy, for what it has to hear: a start that it does not hear of, it ends
AGAIN_S = 1.0  # until the watchdog is told again what it could not be


class Service:
    """Says that the daemon is ready, how it is, that it is alive and that it ends; nothing where nobody listens.

    Args:
        address: of the service manager's socket; a name that begins with @ is an abstract one; '' for none.
        watchdog_s: within which it wants to hear that the daemon is alive; 0 where it does not.
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
        """As the environment says; what it says is taken out of it, so that no program we start speaks for us."""
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
        """It does its work from now on; also after `reloading`."""
        self._send("READY=1", WAIT_S)

    def reloading(self) -> None:
        """It reads its configuration again; `ready` says when it has."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", WAIT_S)

    def status(self, make: Callable[[], str]) -> None:
        """How it is, one line; `make` is called where the time for another one has come."""
        now = self._monotonic()
        if self._socket is not None and now >= self._status_at:
            self._status_at = now + STATUS_S
            self._send(f"STATUS={' '.join(make().split())[:MAX_STATUS]}")

    def alive(self) -> None:
        """The main thread gets on: tell the watchdog, where it is time to."""
        now = self._monotonic()
        if now >= self._alive_at:
            self._alive_at = now + (self._interval_s if self._send("WATCHDOG=1") else min(AGAIN_S, self._interval_s))

    def delay_s(self) -> float:
        """Seconds until `alive` is to be called again; infinite where nobody waits for it."""
        return max(0.0, self._alive_at - self._monotonic())

    def stopping(self) -> None:
        """It is about to end."""
        self._send("STOPPING=1", WAIT_S)

    def close(self) -> None:
        """Close; also twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str, wait_s: float = 0) -> bool:
        """Whether it is told, within that time."""
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
