"""Shared by tests: answer, slots, structure."""

from __future__ import annotations

import ctypes

import numpy as np

from colmet.node.kernel import netlink, taskstats

u8, u16, u32, u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


def structure(version):
    """struct taskstats as include/uapi/linux/taskstats.h lays it out, built by the C rules of alignment."""
    delays = ["cpu", "blkio", "swapin", "freepages", "thrashing", "compact", "wpcopy", "irq"]

    def delay(name):
        fields = [(f"{name}_count", u64), (f"{name}_delay_total", u64)]
        if version == 15:
            fields += [(f"{name}_delay_max", u64), (f"{name}_delay_min", u64)]
        return fields

    fields = [("version", u16), ("ac_exitcode", u32), ("ac_flag", u8), ("ac_nice", u8)]
    fields += delay("cpu") + delay("blkio") + delay("swapin")
    fields += [("cpu_run_real_total", u64), ("cpu_run_virtual_total", u64), ("ac_comm", ctypes.c_char * 32)]
    fields += [("ac_sched", u8), ("ac_pad", u8 * 3), ("hole", u32), ("ac_uid", u32), ("ac_gid", u32), ("ac_pid", u32)]
    fields += [("ac_ppid", u32), ("ac_btime", u32)]
    fields += [(name, u64) for name in ("ac_etime", "ac_utime", "ac_stime", "ac_minflt", "ac_majflt")]
    fields += [(name, u64) for name in ("coremem", "virtmem", "hiwater_rss", "hiwater_vm", "read_char", "write_char")]
    fields += [(name, u64) for name in ("read_syscalls", "write_syscalls", "read_bytes", "write_bytes")]
    fields += [(name, u64) for name in ("cancelled_write_bytes", "nvcsw", "nivcsw", "ac_utimescaled")]
    fields += [("ac_stimescaled", u64), ("cpu_scaled_run_real_total", u64), *delay("freepages")]
    if version >= 9:
        fields += delay("thrashing")
    if version >= 10:
        fields += [("ac_btime64", u64)]
    if version >= 11:
        fields += delay("compact")
    if version >= 12:
        fields += [("ac_tgid", u32), ("ac_tgetime", u64), ("ac_exe_dev", u64), ("ac_exe_inode", u64)]
    if version >= 13:
        fields += delay("wpcopy")
    if version >= 14:
        fields += delay("irq")
    if version >= 16:
        fields += [(f"{name}_delay_{what}", u64) for name in delays for what in ("max", "min")]
    if version >= 17:
        fields += [(f"{name}_delay_max_ts", u64 * 2) for name in delays]
    return type("taskstats", (ctypes.Structure,), {"_fields_": fields})


def answer(version, values, pid=100, sequence=0, family=27):
    """An answer of the kernel for one task."""
    stats = structure(version)(version=version)
    for name, value in values.items():
        setattr(stats, name, value)
    inner = netlink.pack_attribute(1, pid.to_bytes(4, "little"))
    inner += netlink.pack_attribute(taskstats.TASKSTATS_TYPE_STATS, bytes(stats))
    attributes = netlink.pack_attribute(taskstats.TASKSTATS_TYPE_AGGR_PID, inner)
    return netlink.pack_request(family, taskstats.TASKSTATS_CMD_NEW, sequence, attributes)


def slots(*messages):
    lengths = np.array([len(message) for message in messages])
    filled = np.zeros((len(messages), 1024), dtype=np.uint8)
    for slot, message in zip(filled, messages):
        slot[: len(message)] = np.frombuffer(message, dtype=np.uint8)
    return filled, lengths
