"""Bound the share of one client in common resources; requests beyond a bound are answered with 429."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Union

from colmet.common.errors import ColmetError

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class Busy(ColmetError):
    """There are too many requests; answered with 429.

    Attributes:
        after_s: seconds until the retry.
    """

    def __init__(self, text: str, after_s: float = 5.0) -> None:
        super().__init__(text)
        self.after_s = after_s


class Failures:
    """A count of recent failures by key. Beyond the bound on keys, the key with the oldest last failure is dropped.

    Args:
        most: failures within `within_s` that cause a wait.
        within_s: lifetime of a failure in seconds.
        keys: max keys.
    """

    def __init__(self, most: int, within_s: float, keys: int = 10_000) -> None:
        self._most = most
        self._within_s = within_s
        self._keys = keys
        self._times: OrderedDict[Hashable, list[float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._times)

    def note(self, key: Hashable, now: float) -> None:
        """Count one more failure."""
        times = self._times.pop(key, [])
        times.append(now)
        del times[: -self._most]
        self._times[key] = times
        if len(self._times) > self._keys:
            self._times.popitem(last=False)

    def wait_s(self, key: Hashable, now: float) -> float:
        """Return the seconds until the next attempt is due; 0 for now."""
        times = self._times.get(key)
        if times is None or len(times) < self._most:
            return 0.0
        return max(0.0, times[0] + self._within_s - now)

    def forget(self, key: Hashable) -> None:
        """Drop the failures of a key."""
        self._times.pop(key, None)


class Turns:
    """A lock for each key; the next caller is drawn at random.

    A name is drawn first, then one of its callers, hence many callers of one name delay others only briefly.

    Args:
        most: max callers waiting for a key; beyond, a caller of the name with the most callers is refused.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # waiting callers, by key and name; every key here is held by a caller
        self._waiting: dict[Hashable, dict[Hashable, list[asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable, name: Hashable) -> AsyncIterator[None]:
        """Wait for the lock of a key, and hold it within the block.

        Raises:
            Busy: too many callers wait.
        """
        if key in self._waiting:
            await self._wait(self._waiting[key], key, name)
        else:
            self._waiting[key] = {}
        try:
            yield
        finally:
            self._next(key)

    async def _wait(self, names: dict[Hashable, list[asyncio.Future[None]]], key: Hashable, name: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        names.setdefault(name, []).append(turn)
        if sum(map(len, names.values())) > self._most:
            longest = max(names, key=lambda one: len(names[one]))
            if not (drawn := self._draw(names, longest)).done():
                drawn.set_exception(Busy("too many logins are being checked; retry later", 2.0))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():  # it waited; else it had the turn, or was refused
                if turn in names.get(name, ()):
                    names[name].remove(turn)
                    if not names[name]:
                        del names[name]
            elif turn.exception() is None:
                self._next(key)
            raise

    def _next(self, key: Hashable) -> None:
        names = self._waiting[key]
        while names:
            drawn = self._draw(names, random.choice(list(names)))
            if not drawn.done():  # else its caller was cancelled, but has not yet removed it
                drawn.set_result(None)
                return
        del self._waiting[key]

    def _draw(self, names: dict[Hashable, list[asyncio.Future[None]]], name: Hashable) -> asyncio.Future[None]:
        callers = names[name]
        drawn = callers.pop(random.randrange(len(callers)))
        if not callers:
            del names[name]
        return drawn


def parse_address(text: str) -> Address | None:
    """Parse an address; None for other texts. IPv4-mapped IPv6 addresses become IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def network(address: str) -> str:
    """Return the key of an address: IPv4 addresses as they are, IPv6 by /64, as one machine may have a whole /64."""
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address if parsed is None else str(parsed)
