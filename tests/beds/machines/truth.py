"""What Colmet stored of the jobs of jobs.py, beside the kernel's own files."""

from __future__ import annotations

import glob
from typing import NamedTuple

import h5py

MIB = 1 << 20
MISSING = -1
LEAST, MOST = 97.0, 100.5  # % of the cgroup's CPU time
PRESSURES = [f"{what}_pressure_{kind}" for what in ("cpu", "memory", "io") for kind in ("some", "full")]


class Cell(NamedTuple):
    """One place of the table of truth."""

    text: str
    is_right: bool


def keyed(text):
    """The numbers of lines `key number`."""
    lines = [line.split() for line in text.splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def cpu_ns(files):
    if "cpuacct.usage" in files:
        return int(files["cpuacct.usage"])
    return keyed(files["cpu.stat"])["usage_usec"] * 1000


def io_bytes(files):
    """Read and written, as the kernel has them; nothing where it does not count."""
    if "io.stat" in files:
        words = [word.partition("=") for word in files["io.stat"].split()]
        return tuple(sum(int(number) for key, _, number in words if key == name) for name in ("rbytes", "wbytes"))
    lines = [line.split() for line in files.get("blkio.throttle.io_service_bytes_recursive", "").splitlines()]
    sums = [sum(int(line[2]) for line in lines if len(line) == 3 and line[1] == name) for name in ("Read", "Write")]
    return tuple(sums) if any(sums) else None


def oom_kills(files):
    return keyed(files.get("memory.events", files.get("memory.oom_control", ""))).get("oom_kill")


def pressures(files):
    """Total of each kind that the kernel has."""
    found = {}
    for what in ("cpu", "memory", "io"):
        for line in files.get(f"{what}.pressure", "").splitlines():
            found[f"{what}_pressure_{line.split()[0]}"] = int(line.rpartition("total=")[2])
    return found


def memory(files):
    """Current, anonymous and most memory."""
    if "memory.usage_in_bytes" in files:
        return {
            "memory_current": int(files["memory.usage_in_bytes"]),
            "memory_anon": keyed(files["memory.stat"])["total_rss"],
            "memory_peak": int(files["memory.max_usage_in_bytes"]),
        }
    if "memory.current" not in files:
        return {}
    found = {"memory_current": int(files["memory.current"]), "memory_anon": keyed(files["memory.stat"])["anon"]}
    if "memory.peak" in files:
        found["memory_peak"] = int(files["memory.peak"])
    return found


class Stored:
    """The rows of HDF5 files."""

    def __init__(self, directory):
        self._files = [h5py.File(path, "r") for path in sorted(glob.glob(f"{directory}/*.hdf5"))]

    def rows(self, job, table):
        name = f"job_{job}/{table}"
        return [row for file in self._files if name in file for row in file[name][:]]

    def last(self, job, table):
        return self.rows(job, table)[-1]

    def nearest(self, job, table, time_s):
        return min(self.rows(job, table), key=lambda row: abs(int(row["timestamp"]) - time_s))

    def close(self):
        for file in self._files:
            file.close()


def near(one, other, share, least=0):
    return abs(one - other) <= max(share * other, least)


def compare(facts, stored):
    """The cells of one machine, by the name of the row."""
    cells = {}
    for name, job in facts["jobs"].items():
        kernel_ns = cpu_ns(job["files"])
        tasks, group = stored.last(job["job"], "taskstats_default"), stored.last(job["job"], "cgroup_default")
        percent = round(100 * int(tasks["cpu_total"]) / kernel_ns, 1)
        rest_s = int(group["cpu_unattributed"]) / 1e9
        is_right = LEAST <= percent <= MOST and int(group["cpu_usage"]) == kernel_ns
        cells[f"{name}: CPU time, %"] = Cell(f"{percent} ({rest_s:.2f})", is_right)
    jobs = {name: facts["jobs"][name]["files"] for name in facts["jobs"]}

    def row(name, table):
        return stored.last(facts["jobs"][name]["job"], table)

    lost = max(int(one["exit_records_lost"]) for one in stored.rows(0, "agent_default"))
    cells["exit records lost"] = Cell(str(lost), lost == 0)

    kills = oom_kills(jobs["f"])
    found = int(row("f", "cgroup_default")["memory_oom_kills"])
    cells["f: OOM kills, stored/kernel"] = Cell(
        f"{found}/{kills}" if kills is not None else "missing",
        found == (MISSING if kills is None else kills) and kills != 0,
    )

    held = facts["held"]
    kernel = memory(held["files"])
    found = stored.nearest(facts["jobs"]["c"]["job"], "cgroup_default", held["at"])
    for column in ("memory_current", "memory_anon", "memory_peak"):
        value = int(found[column])
        if column in kernel:
            cells[f"c: {column}, MiB"] = Cell(
                f"{value / MIB:.1f}/{kernel[column] / MIB:.1f}",
                near(value, kernel[column], 0.005) and held["is_running"],
            )
        else:
            cells[f"c: {column}, MiB"] = Cell("missing", value == MISSING)

    kernel, group, tasks = io_bytes(jobs["d"]), row("d", "cgroup_default"), row("d", "taskstats_default")
    found = (int(group["io_read_bytes"]), int(group["io_write_bytes"]))
    text = "missing" if kernel is None else "{:.1f}, {:.1f}".format(*(one / MIB for one in found))
    cells["d: cgroup's I/O, MiB"] = Cell(text, found == ((MISSING, MISSING) if kernel is None else kernel))
    found = (int(tasks["read_bytes"]), int(tasks["write_bytes"]))
    cells["d: taskstats' I/O, MiB"] = Cell(
        "{:.1f}, {:.1f}".format(*(one / MIB for one in found)), all(64 * MIB <= one < 66 * MIB for one in found)
    )

    waited, found = facts["waited_ns"], int(row("e", "taskstats_default")["cpu_delay_total"])
    cells["e: delay, stored/schedstat, s"] = Cell(f"{found / 1e9:.2f}/{waited / 1e9:.2f}", near(found, waited, 0.03))

    kernel, group = pressures(jobs["e"]), row("e", "cgroup_default")
    is_right = all(int(group[name]) == kernel.get(name, MISSING) for name in PRESSURES)
    lacks = [name for name in PRESSURES if name not in kernel]
    same = "missing" if not kernel else "equal" + (f", {', '.join(lacks)} missing" if lacks else "")
    cells["e: PSI"] = Cell(same if is_right else "differs", is_right)
    return cells


def markdown(columns):
    """A table of machines: name -> cells."""
    rows = list(dict.fromkeys(name for cells in columns.values() for name in cells))
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name in rows:
        texts = []
        for cells in columns.values():
            cell = cells.get(name, Cell("-", True))
            texts.append(cell.text if cell.is_right else f"**{cell.text}**")
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"
