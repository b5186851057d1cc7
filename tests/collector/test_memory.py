from __future__ import annotations

import subprocess
import sys

import pytest

HOLES = """
import gc, sys, threading
from colmet.common.daemon.startup import tame_malloc
if sys.argv[1] == "tamed":
    assert tame_malloc(2)

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def burst():
    big = [bytes(n << 19) for n in range(1, 24)]
    small = [bytes(900) for _ in range(40_000)]
    keep.append(small[::400])
    del big, small

keep = []
for _ in range(12):
    threads = [threading.Thread(target=burst) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
gc.collect()
print(rss())
"""


def used(how):
    done = subprocess.run([sys.executable, "-c", HOLES, how], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.slow
def test_less_memory_stays_behind_after_bursts_in_many_threads():
    assert used("tamed") < used("wild")
