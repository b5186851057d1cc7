"""Whether each field of struct taskstats is right, by what else the kernel has of the same process.

Runs in a machine, in the Python that has Colmet; prints JSON: version and size of the structure, and the fields that
differ, as [stored, kernel].
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np

from colmet.node.kernel.taskstats import FIELDS, Form, TaskstatsClient

PROCESS = """
import mmap, os, time
memory = mmap.mmap(-1, 20 << 20)
for at in range(0, len(memory), mmap.PAGESIZE): memory[at] = 1
fd = os.open("/var/tmp/colmet-fields", os.O_CREAT | os.O_RDWR)
for _ in range(4): os.write(fd, bytes(1 << 20))
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.lseek(fd, 0, 0)
while os.read(fd, 1 << 20): pass
while time.process_time() < 1: pass
for _ in range(20): time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def keyed(path):
    with open(path) as file:
        return dict(line.split(":", 1) for line in file.read().splitlines())


def kernel_has(pid):
    """Name of the field -> value, and how far ours may be from it."""
    with open(f"/proc/{pid}/stat") as file:
        stat = [0, 0, *file.read().rpartition(")")[2].split()]  # numbered as in proc(5), from 1
    with open(f"/proc/{pid}/schedstat") as file:
        ran, waited, count = map(int, file.read().split())
    io, status = keyed(f"/proc/{pid}/io"), keyed(f"/proc/{pid}/status")
    tick_us = 1_000_000 // os.sysconf("SC_CLK_TCK")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[21]) / os.sysconf("SC_CLK_TCK")
    return {
        "cpu_count": (count, 0),
        "cpu_delay_total": (waited, 0),
        "cpu_run_virtual_total": (ran, 0),
        # ticks, some of which an emulated processor has no time for; /proc scales them to what the scheduler measured
        "cpu_run_real_total": ((int(stat[13]) + int(stat[14])) * tick_us * 1000, 0.95 * ran),
        "ac_utime": (int(stat[13]) * tick_us, 0.95 * ran / 1000),
        "ac_stime": (int(stat[14]) * tick_us, 0.95 * ran / 1000),
        "ac_etime": (int(age_s * 1e6), 2_000_000),
        "ac_btime": (int(time.time() - age_s), 2),
        "ac_minflt": (int(stat[9]), 0),
        "ac_majflt": (int(stat[11]), 0),
        "nvcsw": (int(status["voluntary_ctxt_switches"]), 0),
        "nivcsw": (int(status["nonvoluntary_ctxt_switches"]), 0),
        "blkio_delay_total": (int(stat[41]) * tick_us * 1000, tick_us * 1000),
        # cut to whole KiB
        "read_char": (int(io["rchar"]) // 1024 * 1024, 0),
        "write_char": (int(io["wchar"]) // 1024 * 1024, 0),
        "read_bytes": (int(io["read_bytes"]) // 1024 * 1024, 0),
        "write_bytes": (int(io["write_bytes"]) // 1024 * 1024, 0),
        "cancelled_write_bytes": (int(io["cancelled_write_bytes"]) // 1024 * 1024, 0),
        "read_syscalls": (int(io["syscr"]) // 1024 * 1024, 0),
        "write_syscalls": (int(io["syscw"]) // 1024 * 1024, 0),
        "swapin_count": (0, 0),
        "swapin_delay_total": (0, 0),
        "freepages_count": (0, 0),
        "freepages_delay_total": (0, 0),
    }


def main():
    forms = []

    class Noted(Form):
        """Writes down the version of the first answer."""

        def __init__(self, message):
            super().__init__(message)
            length = int.from_bytes(message[self.offset - 4 : self.offset - 2], "little") - 4  # of the attribute's head
            forms.append((int.from_bytes(message[self.offset : self.offset + 2], "little"), length))

    import colmet.node.kernel.taskstats as module

    module.Form = Noted
    client = TaskstatsClient()
    with subprocess.Popen([sys.executable, "-S", "-c", PROCESS], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            time.sleep(1)  # it sleeps: nothing of it grows but its age
            found, values = client.query(np.array([process.pid], dtype=np.int64))
            assert found.tolist() == [process.pid]
            kernel = kernel_has(process.pid)
        finally:
            process.kill()
    ours = dict(zip(FIELDS, values[0].tolist()))
    differ = {name: [ours[name], value] for name, (value, most) in kernel.items() if abs(ours[name] - value) > most}
    if ours["cpu_run_real_total"] != 1000 * (ours["ac_utime"] + ours["ac_stime"]):
        differ["cpu_run_real_total"] = [ours["cpu_run_real_total"], 1000 * (ours["ac_utime"] + ours["ac_stime"])]
    for name in ("coremem", "virtmem"):
        if ours[name] <= 0:
            differ[name] = [ours[name], "some"]
    version, size = forms[0]
    print(json.dumps({"version": version, "bytes": size, "checked": sorted(kernel), "differ": differ, "values": ours}))


if __name__ == "__main__":
    main()
