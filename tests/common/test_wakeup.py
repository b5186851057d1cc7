"""What wakes threads that poll."""

from __future__ import annotations

import select

from colmet.common.daemon.wakeup import Wakeup


def is_readable(wakeup):
    return bool(select.select([wakeup.fd], [], [], 0)[0])


def test_it_is_readable_from_wake_to_clear():
    wakeup = Wakeup()
    assert not is_readable(wakeup)
    wakeup.clear()
    for count in (1, 3, 4096, 100_000):  # more than a pipe has room for: wake does not wait
        for _ in range(count):
            wakeup.wake()
        assert is_readable(wakeup)
        wakeup.clear()
        assert not is_readable(wakeup), count
    wakeup.close()
    wakeup.close()
    assert wakeup.fd == -1
