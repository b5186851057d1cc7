"""Let short processes wait for a disk, and compare the kernel's count of the waits with their age.

A separate program, because it forks: `waits.py DIRECTORY SECONDS` prints JSON: the number of processes with a counted
wait, and the longest wait exceeding the age of its process, with that age, in seconds; both null without such a wait.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

WRITERS = 4  # on one CPU: the kernel's error needs several tasks there
WRITTEN = 64 << 10  # bytes, each time
MARGIN_S = 0.05  # the kernel reports waits in clock ticks
_BLKIO_TICKS = 39  # index in the fields after the name in /proc/<pid>/stat


def _wait(directory: str) -> tuple[float, float]:
    """Write to the disk once; return this process's wait counted by the kernel, and its age, in seconds."""
    began = time.monotonic()
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(os.urandom(WRITTEN))
        file.flush()
        os.fsync(file.fileno())
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return int(fields[_BLKIO_TICKS]) / os.sysconf("SC_CLK_TCK"), time.monotonic() - began


def _write_in_turns(directory: str, until: float, out: int) -> bool:
    """Start waiting processes one by one, until a time or an impossible wait; return whether all worked."""
    while time.monotonic() < until:
        child = os.fork()
        if not child:
            try:
                waited, age = _wait(directory)
            except OSError:
                os._exit(1)
            if waited:
                os.write(out, f"{waited} {age}\n".encode())
            os._exit(2 if waited > age + MARGIN_S else 0)
        status = os.waitpid(child, 0)[1]
        if status:
            return status == 2 << 8
    return True


def main(directory: str, seconds: float) -> int:
    """Compare waits and ages, and print the result."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    readable, writable = os.pipe()
    until = time.monotonic() + seconds
    for _ in range(WRITERS):
        if not os.fork():
            os.close(readable)
            os._exit(not _write_in_turns(directory, until, writable))
    os.close(writable)
    with open(readable, encoding="ascii") as lines:
        found = [tuple(map(float, line.split())) for line in lines]
    failures = sum(os.wait()[1] != 0 for _ in range(WRITERS))
    wrong = [(waited, age) for waited, age in found if waited > age + MARGIN_S]
    waited, age = max(wrong, default=(None, None))
    print(json.dumps({"waits": len(found), "waited_s": waited, "age_s": age}))
    return int(failures > 0 and not found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
