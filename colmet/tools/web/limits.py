"""Bounds on what one address can take from the others."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable


class Failures:
    """Counts failures by key; each is forgotten after a while. Bounded: the key that failed longest ago goes first.

    Args:
        most: failures within the time that are borne.
        within_s: seconds after which they are forgotten.
        keys: at most so many.
    """

    def __init__(self, most: int, within_s: float, keys: int = 10_000) -> None:
        self._most = most
        self._within_s = within_s
        self._keys = keys
        self._times: OrderedDict[Hashable, list[float]] = OrderedDict()

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._times)

    def note(self, key: Hashable, now: float) -> None:
        """One more failure."""
        times = self._times.pop(key, [])
        times.append(now)
        del times[: -self._most]
        self._times[key] = times
        if len(self._times) > self._keys:
            self._times.popitem(last=False)

    def wait_s(self, key: Hashable, now: float) -> float:
        """Seconds until the next try is taken; 0 for now."""
        times = self._times.get(key)
        if times is None or len(times) < self._most:
            return 0.0
        return max(0.0, times[0] + self._within_s - now)

    def forget(self, key: Hashable) -> None:
        """As if it had never failed."""
        self._times.pop(key, None)


def network(address: str) -> str:
    """What counts as one address: all that a site with IPv6 gives to one machine counts as one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
