from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.node.backends.procstats import SCHEMA, ProcstatsBackend
from tests.support.place import require_programs

CAPTURE = Path(__file__).parents[1] / "data/kernel/proc-linux-6.18"


@pytest.fixture
def captured(fake):
    (fake.path / "proc").mkdir()
    for name in ("uptime", "meminfo", "vmstat", "stat", "loadavg"):
        shutil.copy(CAPTURE / name, fake.path / "proc" / name)
    return fake


def sample(host):
    backend = ProcstatsBackend(host)
    try:
        backend.open()
        (row,) = backend.sample([])
    finally:
        backend.close()
        backend.close()
    assert row.job_id == 0
    return row.values


def column(path, key, index=1):
    (line,) = [line for line in path.read_text().splitlines() if re.split(r"[: ]", line)[0] == key]
    return line.split()[index]


def test_every_counter_of_a_captured_tree_is_what_its_file_says(captured):
    values = sample(captured.host)
    keys = {line.split(":")[0].lower(): line.split(":")[0] for line in (CAPTURE / "meminfo").read_text().splitlines()}
    for field in SCHEMA.fields:
        source, _, key = field.name.partition("_")
        if source == "meminfo" and key in keys:
            assert values[field.name] == int(column(CAPTURE / "meminfo", keys[key])), field.name
        elif source == "meminfo":
            assert values.get(field.name) is None, field.name
        elif source == "vmstat":
            assert values[field.name] == int(column(CAPTURE / "vmstat", key)), field.name
    assert values["stat_ctxt"] == int(column(CAPTURE / "stat", "ctxt"))
    assert values["stat_intr"] == int(column(CAPTURE / "stat", "intr"))
    assert values["uptime_total"] == int(float((CAPTURE / "uptime").read_text().split()[0]))
    assert values["uptime_idle"] == int(float((CAPTURE / "uptime").read_text().split()[1]))
    load = (CAPTURE / "loadavg").read_text().replace("/", " ").split()
    names = ("loadavg_1min", "loadavg_5min", "loadavg_15min", "loadavg_runnable", "loadavg_total_threads")
    assert [values[name] for name in names] == [float(text) for text in load[:5]]
    assert set(values) <= set(SCHEMA.names)


def test_what_an_old_kernel_does_not_tell_is_missing_not_zero(captured):
    captured.write("/proc/stat", "cpu  1 2 3 4 5 6 7\nintr 11\n")
    captured.write("/proc/meminfo", "MemTotal: 100 kB\n")
    values = sample(captured.host)
    assert "stat_cpu_steal" not in values and "stat_cpus" not in values and "meminfo_memfree" not in values
    assert values["meminfo_memtotal"] == 100


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uptime", ""),
        ("uptime", "one two"),
        ("meminfo", "MemTotal: much kB"),
        ("meminfo", "MemTotal:"),
        ("vmstat", "pgfault x"),
        ("stat", ""),
        ("stat", "cpu a b c"),
        ("stat", "cpu 1 2 3 4\nctxt"),
        ("loadavg", "0.1 0.2"),
        ("loadavg", "0.1 0.2 0.3 x 5"),
    ],
)
def test_a_file_of_another_form_is_a_parse_error_that_names_it(captured, name, text):
    captured.write(f"/proc/{name}", text)
    with pytest.raises(ParseError, match=f"/proc/{name}"):
        sample(captured.host)


def test_a_machine_without_proc_is_unavailable(fake):
    with pytest.raises(BackendUnavailable, match="is /proc mounted"):
        ProcstatsBackend(fake.host).open()


@pytest.mark.live
def test_live_memory_equals_what_free_says():
    require_programs("free")
    free = subprocess.run(["free", "-k"], capture_output=True, text=True, check=True).stdout.splitlines()[1].split()
    values = sample(Host())
    total, used_by_cache = int(free[1]), int(free[5])
    assert values["meminfo_memtotal"] == total
    cached = values["meminfo_cached"] + values["meminfo_buffers"] + values["meminfo_sreclaimable"]
    assert cached == pytest.approx(used_by_cache, rel=0.05)


@pytest.mark.live
def test_live_cpu_time_and_uptime_grow_as_the_clock_does():
    backend = ProcstatsBackend(Host())
    (before,) = backend.sample([])
    started = time.monotonic()
    time.sleep(1.0)
    (after,) = backend.sample([])
    elapsed = time.monotonic() - started
    backend.close()
    busy_or_idle = [f.name for f in SCHEMA.fields if f.unit == "jiffies" and "guest" not in f.name]
    ticks = sum(after.values[name] - before.values[name] for name in busy_or_idle)
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    assert after.values["stat_cpus"] == cpus
    assert ticks / os.sysconf("SC_CLK_TCK") == pytest.approx(cpus * elapsed, rel=0.3)
    assert 0 <= after.values["uptime_total"] - before.values["uptime_total"] <= 2
