"""Run a program with a clock that goes faster: `fast_clock.py BEGAN START RATE MODULE [ARGUMENT...]`.

`time.time` and `time.time_ns` were START at BEGAN (seconds since 1970), and count RATE seconds for each second since.
Let them end before now: times of files are those of the system. Clocks for pauses and deadlines go as usual; periods
between two searches for old data are divided by RATE.
"""

from __future__ import annotations

import runpy
import sys
import time

NS = 1_000_000_000


def speed_up(began: float, start: float, rate: float) -> None:
    """Set the clock of this process."""
    real = time.time_ns
    began_ns, start_ns = int(began * NS), int(start * NS)

    def now_ns() -> int:
        return start_ns + int((real() - began_ns) * rate)

    time.time_ns = now_ns
    time.time = lambda: now_ns() / NS
    from colmet.common.daemon import daemon_health
    from colmet.jobs.archive import removal  # its clocks are those of the import

    removal.EVERY_S /= rate
    daemon_health.MIN_STEP_NS = sys.maxsize  # this clock always differs from the time since boot


if __name__ == "__main__":
    speed_up(*map(float, sys.argv[1:4]))
    module = sys.argv[4]
    sys.argv = sys.argv[4:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
