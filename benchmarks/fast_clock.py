"""Run a program with a clock that goes faster: `fast_clock.py BEGAN RATE MODULE [ARGUMENT...]`.

`time.time` and `time.time_ns` count RATE seconds for each second since BEGAN (seconds since 1970). Clocks for pauses
and deadlines go as usual; periods between two searches for old data are divided by RATE.
"""

from __future__ import annotations

import runpy
import sys
import time

from colmet.archive import expiry

NS = 1_000_000_000


def speed_up(began: float, rate: float) -> None:
    """Set the clock of this process."""
    real = time.time_ns
    began_ns = int(began * NS)

    def now_ns() -> int:
        return began_ns + int((real() - began_ns) * rate)

    time.time_ns = now_ns
    time.time = lambda: now_ns() / NS
    expiry.EVERY_S /= rate


if __name__ == "__main__":
    speed_up(float(sys.argv[1]), float(sys.argv[2]))
    module = sys.argv[3]
    sys.argv = sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
