"""Who sends as a host: one agent at a time, so that rows of two machines are never mixed.

The first machine that speaks holds the name while it speaks; a silence of a minute and three periods releases it. A
machine is recognised by its address, or with keys by the key alone. Batches of another one are refused: they stay
there, unacknowledged. On one machine a new start of the agent holds the name at once, as after a restart. If the start
before it goes on, it gets the name back, and the new one waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Union

Start = Union[int, str]  # of an agent: its epoch; the dialect of one without numbers

QUIET_NS = 60 * 10**9
MAX_PERIOD_NS = 600 * 10**9
MAX_STARTS = 16  # in memory, of one host: those that spoke last
MAX_REFUSED = 8  # machines in memory, of one host


class HostHolder:
    """The agent that sends as one host, and those that are refused meanwhile.

    Args:
        start: of the agent.
        address: of its machine; "" if unknown.
        time_ns: of its first sample.
        now_ns: the collector's clock.
    """

    __slots__ = ("_address", "_first_ns", "_former", "_heard_ns", "_last_ns", "_period_ns", "_refused", "_start")

    def __init__(self, start: Start, address: str, time_ns: int, now_ns: int) -> None:
        self._start = start
        self._address = address
        self._first_ns = self._last_ns = time_ns
        self._heard_ns = now_ns
        self._period_ns = 0  # between its last two samples
        self._former: list[Start] = []  # earlier holders, the latest last
        self._refused: dict[tuple[Start, str], int] = {}  # starts and addresses, with the time of the latest refusal

    def continues(self, start: Start, address: str, is_keyed: bool, time_ns: int, now_ns: int) -> bool:
        """Return whether a batch is the holder's, and note it."""
        if start != self._start or not (is_keyed or self._is_here(address)):
            return False
        self._address = address or self._address
        if time_ns > self._last_ns:
            self._period_ns = min(time_ns - self._last_ns, MAX_PERIOD_NS)
            self._last_ns = time_ns
        self._heard_ns = now_ns
        return True

    def admits(
        self, start: Start, address: str, is_keyed: bool, time_ns: int, now_ns: int, is_held: bool = False
    ) -> bool:
        """Return whether a batch is admitted; its agent holds the name from now on, unless the batch is an older one.

        Args:
            start: of the agent.
            address: of its machine; "" if unknown.
            is_keyed: whether it has the host's key: its address does not matter then.
            time_ns: of the samples.
            now_ns: the collector's clock.
            is_held: whether the holder has said that it has batches of this start to send.
        """
        if self.continues(start, address, is_keyed, time_ns, now_ns):
            return True
        is_here = is_keyed or self._is_here(address)
        is_numbered = isinstance(start, int) and isinstance(self._start, int)
        if is_here and is_numbered and (is_held or time_ns < self._first_ns):
            return True  # of an earlier start, kept on the node until now
        if self._is_live(now_ns):
            if not self._gives_way(start, is_here):
                self._refuse(start, address, now_ns)
                return False
            if start in self._former:  # both speak
                self._refuse(self._start, self._address, now_ns)
        self._former = [one for one in [*self._former, self._start] if one != start][-MAX_STARTS:]
        self._refused.pop((start, address), None)
        self._start, self._address = start, address
        self._first_ns = self._last_ns = time_ns
        self._heard_ns, self._period_ns = now_ns, 0
        return True

    def listens_to(self, start: int, address: str, is_keyed: bool, now_ns: int) -> bool:
        """Return whether a Hello is the holder's, or that of an agent which may hold the name."""
        is_here = is_keyed or self._is_here(address)
        if (is_here and start == self._start) or not self._is_live(now_ns):
            return True
        return start not in self._former and self._gives_way(start, is_here)

    def _is_here(self, address: str) -> bool:
        return address == self._address or not address or not self._address

    def _is_live(self, now_ns: int) -> bool:
        return now_ns - self._heard_ns <= QUIET_NS + 3 * self._period_ns

    def _gives_way(self, start: Start, is_here: bool) -> bool:
        """Return whether the holder, still speaking, leaves the name to this start: one on its own machine.

        An agent of Colmet 0.6 beside one with numbered batches never gets it, nor does a start that had to wait before.
        """
        if not is_here or (isinstance(start, str) and isinstance(self._start, int)):
            return False
        return all(start != refused for refused, _ in self._refused)

    def _refuse(self, start: Start, address: str, now_ns: int) -> None:
        self._refused.pop((start, address), None)
        self._refused[start, address] = now_ns
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def agents(self, now_ns: int) -> list[str]:
        """Return the agents that have sent in the last minutes, the holder first; nothing if it is one agent."""
        self._refused = {key: at for key, at in self._refused.items() if now_ns - at <= QUIET_NS + 3 * self._period_ns}
        if not self._refused:
            return []
        return [described(self._start, self._address), *[described(*key) for key in self._refused]]

    def state(self) -> list[Any]:
        """Return the state for `restored`."""
        return [self._start, self._address, self._first_ns, self._last_ns, self._former]

    @classmethod
    def restored(cls, state: Sequence[Any], now_ns: int) -> HostHolder:
        """Return the holder of a `state`, heard just now; ValueError or TypeError if the state is malformed."""
        start, address, first_ns, last_ns, former = state
        holder = cls(_start(start), str(address), int(first_ns), now_ns)
        holder._last_ns = int(last_ns)
        holder._former = [_start(one) for one in former[-MAX_STARTS:]]
        return holder


def _start(value: Any) -> Start:
    return value if isinstance(value, str) else int(value)


def described(start: Start, address: str) -> str:
    """Return an agent in words: its address, and when it was started, or its dialect."""
    if isinstance(start, str):
        return f"[{address or 'local'}] {start}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(start // 10**9, 1 << 35)))
    return f"[{address or 'local'}] started {since}"
