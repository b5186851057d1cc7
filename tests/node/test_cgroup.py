from __future__ import annotations

import errno
import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from colmet.common.host.host import Host
from colmet.common.schema import Table
from colmet.common.tables import RUN, UPTIME
from colmet.node.backends.cgroup import IN_USE, SCHEMA, SLOW_TICKS, CgroupBackend
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import has_counted
from tests.support.machine import cgroup_mount
from tests.support.place import skip_refused

KERNEL = Path(__file__).parents[1] / "data/kernel"
V1 = KERNEL / "cgroup-v1-linux-6.18"
V2 = KERNEL / "cgroup-v2-linux-6.x"
V1_CONTROLLERS = ("cpuacct", "cpu", "cpuset", "memory", "blkio", "pids")
PRESSURE = {name for name in SCHEMA.names if "_pressure_" in name}


class OneJob(Job):
    """A job whose directories are known."""

    def __init__(self, host, job_id=42, user="bob", **directories):
        super().__init__(host, job_id, user)
        self.directories = directories

    def directory(self, controller):
        found = self.directories.get(controller)
        return None if found is None else str(found)


def make_v1(fake, controllers=V1_CONTROLLERS, job_id=42):
    """A job with the captured files of these controllers."""
    directories = {}
    for controller in controllers:
        directory = f"/cgroup/{controller}/oar/bob_{job_id}"
        shutil.copytree(V1 / controller, fake.path / directory.lstrip("/"))
        directories[controller] = directory
    return OneJob(fake.host, job_id, **directories)


def make_v2(fake, job_id=42):
    shutil.copytree(V2, fake.path / f"cgroup/oar.slice/bob_{job_id}")
    return OneJob(fake.host, job_id, unified=f"/cgroup/oar.slice/bob_{job_id}")


@pytest.fixture
def backend(fake):
    made = CgroupBackend(fake.host)
    made.attributed = {}  # CPU time in ns of a job's tasks, as another backend measures it
    made.use_value("cpu_attributed", made.attributed.get)
    made.open()
    yield made
    made.close()
    made.close()
    assert fake.host.kept == 0


def values_of(backend, job):
    rows = list(backend.sample([job]))
    if not rows:
        return {}
    (row,) = rows
    assert row.job_id == job.id
    assert set(row.values) <= set(SCHEMA.names)
    Table.from_samples(SCHEMA, 0, rows)
    return row.values


V1_VALUES = {
    **{"user": b"bob", "cpu_usage": 399059346, "cpu_user": 280_000_000, "cpu_system": 110_000_000},
    **{"cpus_allocated": 2, "nr_periods": 11, "nr_throttled": 8, "throttled_time": 285931018},
    **{"memory_current": 72933376, "memory_peak": 72945664, "memory_swap": 0, "memory_kernel": 401408},
    **{"memory_anon": 62685184, "memory_file": 9654272, "memory_shmem": 4194304, "memory_mapped_file": 1077248},
    **{"memory_dirty": 5246976, "memory_writeback": 0, "memory_anon_thp": 0},
    **{"memory_active_anon": 4096, "memory_inactive_anon": 66875392},
    **{"memory_active_file": 73728, "memory_inactive_file": 5386240, "memory_unevictable": 0},
    **{"memory_pgfault": 24958, "memory_pgmajfault": 3, "memory_pgpgin": 20889, "memory_pgpgout": 4505},
    **{"memory_refault_anon": 0, "memory_refault_file": 52, "memory_limit_hits": 0, "memory_oom_kills": 0},
    **{"io_read_bytes": 8650752, "io_write_bytes": 16785408, "io_read_ops": 52, "io_write_ops": 13},
    **{"pids_current": 1, "pids_peak": 6, "pids_limit_hits": 0},
}
V2_VALUES = {
    **{"user": b"bob", "cpu_usage": 400001234000, "cpu_user": 300001000000, "cpu_system": 100000234000},
    **{"cpus_allocated": 17, "nr_periods": 5012, "nr_throttled": 311, "throttled_time": 27123456000},
    **{"memory_current": 5435817984, "memory_peak": 6442450944, "memory_limit": 8589934592},
    **{"memory_swap_limit": 8589934592 + 1073741824, "memory_swap": 20971520, "memory_kernel": 67108864},
    **{"memory_anon": 4294967296, "memory_file": 1073741824, "memory_shmem": 33554432},
    **{"memory_mapped_file": 16777216, "memory_dirty": 2097152, "memory_writeback": 1048576},
    **{"memory_anon_thp": 2147483648, "memory_active_anon": 16777216, "memory_inactive_anon": 4311744512},
    **{"memory_active_file": 234881024, "memory_inactive_file": 805306368, "memory_unevictable": 8192},
    **{"memory_pgfault": 1234567, "memory_pgmajfault": 89, "memory_refault_anon": 12, "memory_refault_file": 3456},
    **{"memory_limit_hits": 42, "memory_oom_kills": 1, "pids_current": 37, "pids_peak": 129, "pids_limit": 4096},
    **{"pids_limit_hits": 3, "cpu_pressure_some": 25481, "cpu_pressure_full": 13265},
    **{"memory_pressure_some": 70001, "memory_pressure_full": 60001},
    **{"io_pressure_some": 500003, "io_pressure_full": 400003},
    # 253:0 is made of 254:0, and a device that is not known is a path to another
    **{"io_read_bytes": 1459200 + 4096, "io_write_bytes": 314773504 + 8192},
    **{"io_read_ops": 193, "io_write_ops": 355},
}


# What is read


def test_captured_v1_files(fake, backend):
    assert values_of(backend, make_v1(fake)) == V1_VALUES
    missing = {"cpu_unattributed", "memory_limit", "memory_swap_limit", "pids_limit", RUN, UPTIME}
    assert set(SCHEMA.names) - set(V1_VALUES) == PRESSURE | missing


def test_v2_files(fake, backend):
    fake.mkdir("/sys/dev/block/254:0/slaves")
    fake.mkdir("/sys/dev/block/253:0/slaves/sda")
    assert values_of(backend, make_v2(fake)) == V2_VALUES
    assert set(SCHEMA.names) - set(V2_VALUES) == {*("cpu_unattributed", "memory_pgpgin", "memory_pgpgout", RUN, UPTIME)}


def test_a_v2_directory_of_a_hybrid_machine_gives_pressure_and_leaves_the_rest_to_v1(fake, backend):
    job = make_v1(fake)
    for name in ("cpu.stat", "cpu.pressure", "memory.pressure", "io.pressure"):
        fake.write(f"/unified/bob_42/{name}", (V1 / "unified" / name).read_bytes())
    job.directories["unified"] = "/unified/bob_42"
    values = values_of(backend, job)
    assert values == {
        **V1_VALUES,
        **{"cpu_pressure_some": 196074, "cpu_pressure_full": 188069, "io_pressure_some": 1338},
        **{"io_pressure_full": 1338, "memory_pressure_some": 0, "memory_pressure_full": 0},
    }


def test_what_no_controller_holds_is_missing_not_zero(fake, backend):
    values = values_of(backend, make_v1(fake, ("cpuset", "cpu", "cpuacct")))
    cpu = {
        name
        for name in SCHEMA.names
        if name.startswith(("cpu_", "cpus_", "nr_", "throttled_")) and "pressure" not in name
    }
    assert set(values) == (cpu | {"user"}) - {"cpu_unattributed"}


def test_a_job_without_any_directory_has_no_row(fake, backend):
    assert list(backend.sample([OneJob(fake.host)])) == []
    assert backend.last(OneJob(fake.host)) is None


def test_limits_are_there_where_they_are_set(fake, backend):
    job = make_v1(fake)
    stat = (V1 / "memory/memory.stat").read_text()
    stat = stat.replace("memory_limit 9223372036854771712", "memory_limit 8589934592")
    fake.write(
        "/cgroup/memory/oar/bob_42/memory.stat",
        stat.replace("memsw_limit 9223372036854771712", "memsw_limit 9000000000"),
    )
    fake.write("/cgroup/pids/oar/bob_42/pids.max", "4096\n")
    values = values_of(backend, job)
    assert (values["memory_limit"], values["memory_swap_limit"], values["pids_limit"]) == (8589934592, 9000000000, 4096)


@pytest.mark.parametrize("unlimited", ["9223372036854771712", "9223372036854710272", "18446744073709551615"])
def test_v1_says_unlimited_with_a_number(fake, backend, unlimited):
    job = make_v1(fake)
    stat = (V1 / "memory/memory.stat").read_text().replace("9223372036854771712", unlimited)
    fake.write("/cgroup/memory/oar/bob_42/memory.stat", stat)
    assert values_of(backend, job) == V1_VALUES


def test_v2_says_unlimited_with_max(fake, backend):
    job = make_v2(fake)
    for name in ("memory.max", "pids.max"):
        fake.write(f"/cgroup/oar.slice/bob_42/{name}", "max\n")
    values = values_of(backend, job)
    assert not {"memory_limit", "memory_swap_limit", "pids_limit"} & set(values)


def test_cpu_time_that_no_known_task_used(fake, backend):
    job = make_v1(fake, ("cpuacct",))
    assert "cpu_unattributed" not in values_of(backend, job)
    backend.attributed[job] = 399_000_000
    assert values_of(backend, job)["cpu_unattributed"] == 59_346
    backend.attributed[job] = 500_000_000
    assert values_of(backend, job)["cpu_unattributed"] == 0
    no_cpuacct = make_v1(fake, ("pids",), job_id=43)
    backend.attributed[no_cpuacct] = 1
    assert "cpu_unattributed" not in values_of(backend, no_cpuacct)


def with_processes(fake, *uids):
    """A job of which no path says whose it is, and its processes; None for one that has ended."""
    job = make_v2(fake)
    job.user = ""
    job.pids = lambda: list(range(7, 7 + len(uids)))
    for pid, uid in enumerate(uids, 7):
        if uid is not None:
            fake.write(f"/proc/{pid}/status", f"Name:\tx\nUid:\t{uid}\t0\t0\t0\nGid:\t0\n")
    return job


def test_where_no_path_says_whose_a_job_is_its_processes_do(fake, backend):
    """As with Slurm on cgroup v2, where some of root's are in the job, too."""
    job = with_processes(fake, 0, None, 1042, 1043)
    assert values_of(backend, job)["user"] == b"1042"
    assert job.user == "1042"


@pytest.mark.parametrize(
    ("uid", "user"),
    [(1042, "1042"), (100_000, "1042"), (165_535, "1042"), (165_536, "65535"), (300_000, "1044"), (400_000, "")],
)
def test_a_process_under_a_subordinate_uid_is_its_owners(fake, backend, monkeypatch, uid, user):
    fake.write("/etc/subuid", "alice:100000:65536\n# x\n65535:165536:1\nbad:x:1\nbob:300000:9\ngone:400000:9\n")
    monkeypatch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid={"alice": 1042, "bob": 1044}[name]))
    job = with_processes(fake, uid)
    values_of(backend, job)
    assert job.user == user


# I/O of v1


DIRECTIONS = ("Read", "Write", "Sync", "Async", "Discard", "Total")


def blkio(fake, job, top):
    """The job did no I/O; the number that the hierarchy's top has for a device, None where it lists none."""
    for name in ("io_service_bytes_recursive", "io_serviced_recursive"):
        shutil.copy(
            V1 / "blkio-not-counted" / f"blkio.throttle.{name}",
            fake.path / f"cgroup/blkio/oar/bob_42/blkio.throttle.{name}",
        )
    fake.write("/cgroup/blkio/oar/blkio.throttle.io_service_bytes", "Total 0\n")
    fake.write("/cgroup/blkio/oar/bob_42/blkio.throttle.io_service_bytes", "Total 0\n")
    listed = "" if top is None else "".join(f"254:0 {what} {top}\n" for what in DIRECTIONS)
    fake.write("/cgroup/blkio/blkio.throttle.io_service_bytes", f"{listed}Total {top or 0}\n")
    fake.write("/proc/diskstats", " 254       0 vda 16291 7 1234 5 7 0 0 0 0 0 0 0 0 0 0 0 0\n")
    return job


IO = {"io_read_bytes", "io_write_bytes", "io_read_ops", "io_write_ops"}


def test_a_job_without_io_has_zeros_where_the_kernel_counts(fake, backend):
    values = values_of(backend, blkio(fake, make_v1(fake), top=4096))
    assert {values[name] for name in IO} == {0}


def test_io_is_missing_where_the_kernel_does_not_count(fake, backend, caplog):
    job = blkio(fake, make_v1(fake), top=None)
    for _ in range(3):
        assert not IO & set(values_of(backend, job))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "counts no I/O" in record.getMessage() and "/cgroup/blkio/oar/bob_42" in record.getMessage()
    blkio(fake, job, top=4096)
    for _ in range(2 * SLOW_TICKS):
        values = values_of(backend, job)
    assert {values[name] for name in IO} == {0}


def test_io_is_missing_where_the_kernel_lists_devices_and_counts_none_of_them(fake, backend, caplog):
    """Linux 5.16 to 6.4."""
    job = blkio(fake, make_v1(fake), top=0)
    for name in ("io_service_bytes_recursive", "io_serviced_recursive"):
        text = "".join(f"254:0 {what} 0\n" for what in DIRECTIONS) + "Total 0\n"
        fake.write(f"/cgroup/blkio/oar/bob_42/blkio.throttle.{name}", text)
    for _ in range(2 * SLOW_TICKS):
        assert not IO & set(values_of(backend, job))
    assert caplog.text.count("Linux 5.16 to 6.4 count only in groups with a limit") == 1
    # where a group has a limit, the top counts; that does not make the others count
    for name in ("io_service_bytes", "io_service_bytes_recursive"):
        fake.write(f"/cgroup/blkio/blkio.throttle.{name}", "254:0 Read 512\n254:0 Write 0\nTotal 512\n")
    for _ in range(SLOW_TICKS):
        assert not IO & set(values_of(backend, job))
    fake.write(
        "/cgroup/blkio/oar/bob_42/blkio.throttle.io_service_bytes_recursive",
        "254:0 Read 512\n254:0 Write 0\nTotal 512\n",
    )
    for _ in range(SLOW_TICKS):
        values = values_of(backend, job)
    assert {name: values.get(name) for name in IO} == {
        **{"io_read_bytes": 512, "io_write_bytes": 0, "io_read_ops": None, "io_write_ops": None}
    }


@pytest.mark.parametrize("top", [None, 0])
def test_before_any_disk_was_used_io_is_missing_and_that_is_no_warning(fake, backend, caplog, top):
    job = blkio(fake, make_v1(fake), top=top)
    fake.write("/proc/diskstats", " 254       0 vda 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n   1 0 short\n")
    assert not IO & set(values_of(backend, job))
    assert "counts no I/O" not in caplog.text
    blkio(fake, job, top=4096)
    for _ in range(2 * SLOW_TICKS):
        values = values_of(backend, job)
    assert {values[name] for name in IO} == {0}


def test_kernels_without_the_recursive_files_have_the_others(fake, backend):
    job = make_v1(fake)
    directory = fake.path / "cgroup/blkio/oar/bob_42"
    for name in ("io_service_bytes", "io_serviced"):
        (directory / f"blkio.throttle.{name}_recursive").rename(directory / f"blkio.throttle.{name}")
    assert values_of(backend, job) == V1_VALUES


def test_v2_io_of_a_job_that_did_none_is_zero(fake, backend):
    job = make_v2(fake)
    fake.write("/cgroup/oar.slice/bob_42/io.stat", "")
    values = values_of(backend, job)
    assert {values[name] for name in IO} == {0}


# Older kernels


def test_kernel_memory_of_v2_before_518_is_the_sum_of_its_parts(fake, backend):
    job = make_v2(fake)
    stat = (V2 / "memory.stat").read_text().replace("\nkernel 67108864\n", "\n")
    fake.write("/cgroup/oar.slice/bob_42/memory.stat", stat)
    assert values_of(backend, job)["memory_kernel"] == 1638400 + 12582912 + 262144 + 52428800


def test_what_an_old_kernel_does_not_have_is_missing(fake, backend):
    job = make_v1(fake)
    for name in ("cpuset/{}/cpuset.effective_cpus", "pids/{}/pids.peak", "memory/{}/memory.kmem.usage_in_bytes"):
        (fake.path / "cgroup" / name.format("oar/bob_42")).unlink()
    fake.write("/cgroup/memory/oar/bob_42/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
    expected = {
        key: value for key, value in V1_VALUES.items() if key not in ("pids_peak", "memory_kernel", "memory_oom_kills")
    }
    assert values_of(backend, job) == expected
    assert backend._failures == 0


def test_kills_in_groups_inside_count_for_the_job(fake, backend):
    """Slurm has a group for each step and task, and cgroup v1 counts a kill in the process's own group alone."""
    job = make_v1(fake)
    memory = "/cgroup/memory/oar/bob_42"

    def kills(where, count):
        fake.write(f"{memory}/{where}memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")

    def hits(where, count):
        fake.write(f"{memory}/{where}memory.failcnt", f"{count}\n")

    kills("", 0)
    kills("step_0/", 0)
    kills("step_0/task_0/", 2)
    hits("", 1)
    hits("step_0/task_0/", 30)
    found = values_of(backend, job)
    assert (found["memory_oom_kills"], found["memory_limit_hits"]) == (2, 31), "far from the job's own limit"
    kills("step_1/task_0/", 1)
    kills("", 1)
    backend.notice(job)
    shutil.rmtree(fake.path / memory[1:] / "step_0")
    backend.notice(job)
    found = values_of(backend, job)
    assert (found["memory_oom_kills"], found["memory_limit_hits"]) == (4, 31), "those of a step that has ended remain"
    kills("step_0/task_0/", 1)
    kills("step_1/task_0/", 0)
    backend.notice(job)
    assert values_of(backend, job)["memory_oom_kills"] == 5, "as do those of a step with the path of another one"
    assert backend._failures == 0


# Malformed, vanished, late


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        ("cpuacct/cpuacct.usage", "", {"cpu_usage"}),
        ("cpuacct/cpuacct.usage", "many\n", {"cpu_usage"}),
        ("cpuacct/cpuacct.usage", "-5\n", {"cpu_usage"}),
        ("cpuacct/cpuacct.stat", "user 5\nsystem\n", {"cpu_user", "cpu_system"}),
        ("cpuacct/cpuacct.stat", "user 5\nsystem x\n", {"cpu_user", "cpu_system"}),
        ("cpu/cpu.stat", "", {"nr_periods", "nr_throttled", "throttled_time"}),
        ("cpuset/cpuset.effective_cpus", "0-x\n", {"cpus_allocated"}),
        ("cpuset/cpuset.effective_cpus", "5-2\n", {"cpus_allocated"}),
        ("memory/memory.usage_in_bytes", "99999999999999999999999\n", {"memory_current"}),
        ("memory/memory.oom_control", "oom_kill\n", {"memory_oom_kills"}),
        ("blkio/blkio.throttle.io_service_bytes_recursive", "254:0 Read\n", {"io_read_bytes", "io_write_bytes"}),
        ("blkio/blkio.throttle.io_serviced_recursive", "254:0 Read x\n", {"io_read_ops", "io_write_ops"}),
        ("blkio/blkio.throttle.io_serviced_recursive", "8:0 a 1\n", {"io_read_ops", "io_write_ops"}),
        ("pids/pids.events", "max many\n", {"pids_limit_hits"}),
    ],
)
def test_a_malformed_v1_file_loses_its_columns_alone(fake, backend, caplog, name, text, missing):
    good, bad = make_v1(fake, job_id=41), make_v1(fake)
    controller, _, file = name.partition("/")
    path = f"/cgroup/{controller}/oar/bob_42/{file}"
    fake.write(path, text)
    rows = {row.job_id: row.values for row in backend.sample([good, bad])}
    assert rows[41] == V1_VALUES
    assert rows[42] == {key: value for key, value in V1_VALUES.items() if key not in missing}
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert path in record.getMessage() and repr(text.encode()[:80]) in record.getMessage()


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        (
            "cpu.stat",
            "usage_usec\n",
            {"cpu_usage", "cpu_user", "cpu_system", "nr_periods", "nr_throttled", "throttled_time"},
        ),
        ("io.stat", "garbage\n", IO),
        ("io.stat", "254:0 rbytes=x\n", IO),
        ("io.stat", "254:0 rbytes=-1\n", IO),
        ("memory.events", "max 1 oom\n", {"memory_limit_hits", "memory_oom_kills"}),
        ("memory.max", "much\n", {"memory_limit", "memory_swap_limit"}),
        ("io.pressure", "some avg10=0.00\n", {"io_pressure_some", "io_pressure_full"}),
        ("io.pressure", "some avg10=0.00 total=x\n", {"io_pressure_some", "io_pressure_full"}),
        ("io.pressure", "most avg10=0.00 total=1\n", {"io_pressure_some", "io_pressure_full"}),
        ("pids.current", "max\n", {"pids_current"}),
        ("cpuset.cpus.effective", "all\n", {"cpus_allocated"}),
    ],
)
def test_a_malformed_v2_file_loses_its_columns_alone(fake, backend, name, text, missing):
    fake.mkdir("/sys/dev/block/253:0/slaves/sda")
    job = make_v2(fake)
    fake.write(f"/cgroup/oar.slice/bob_42/{name}", text)
    assert values_of(backend, job) == {key: value for key, value in V2_VALUES.items() if key not in missing}
    assert backend._failures == 1


def test_controllers_that_come_later_are_found(fake, backend):
    job = make_v1(fake)
    late, job.directories = job.directories, {"cpuset": "/cgroup/cpuset/oar/bob_42"}
    assert set(values_of(backend, job)) == {"user", "cpus_allocated"}
    job.directories = late
    assert values_of(backend, job) == V1_VALUES


class Removed:
    """Descriptors into a removed cgroup: reads fail with ENODEV, as the kernel has it."""

    def __init__(self, monkeypatch, *parts):
        real = os.pread
        self.parts = parts

        def pread(fd, size, offset):
            if any(part in os.readlink(f"/proc/self/fd/{fd}") for part in self.parts):
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            return real(fd, size, offset)

        monkeypatch.setattr(os, "pread", pread)


def test_a_controller_whose_group_goes_is_missing_and_found_again(fake, backend, monkeypatch):
    job = make_v1(fake)
    assert values_of(backend, job) == V1_VALUES
    removed = Removed(monkeypatch, "/memory/")
    memory = job.directories.pop("memory")
    without = {key: value for key, value in V1_VALUES.items() if not key.startswith("memory_")}
    assert values_of(backend, job) == without
    assert values_of(backend, job) == without
    removed.parts = ()
    job.directories["memory"] = memory
    assert values_of(backend, job) == V1_VALUES
    assert backend._failures == 0


@pytest.mark.parametrize(
    ("error", "failures"), [(errno.EOPNOTSUPP, 0), (errno.EACCES, 1), (errno.EIO, 1)], ids=lambda code: str(code)
)
def test_a_file_that_cannot_be_read_is_missing_and_left_for_a_while(fake, backend, monkeypatch, error, failures):
    fake.mkdir("/sys/dev/block/253:0/slaves/sda")
    real = os.pread
    tried = []

    def pread(fd, size, offset):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("io.pressure"):
            tried.append(fd)
            raise OSError(error, os.strerror(error))
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    job = make_v2(fake)
    expected = {key: value for key, value in V2_VALUES.items() if not key.startswith("io_pressure")}
    assert values_of(backend, job) == expected
    assert backend._failures == failures
    for _ in range(4 * SLOW_TICKS):
        assert values_of(backend, job) == expected
    assert len(tried) < 10


def test_a_job_that_is_gone_gives_its_descriptors_back(fake, backend):
    jobs = [make_v1(fake, job_id=job_id) for job_id in (1, 2)]
    list(backend.sample(jobs))
    both = fake.host.kept
    list(backend.sample(jobs[:1]))
    assert fake.host.kept == both / 2
    list(backend.sample([]))
    list(backend.sample([]))
    assert fake.host.kept == 0 and not backend._groups


# Between ticks, and at the end


def test_what_was_noticed_is_in_the_last_row_of_a_job_that_no_tick_saw(fake, backend):
    job = make_v1(fake)
    backend.notice(job)
    shutil.rmtree(fake.path / "cgroup")
    job.directories = {}
    backend.attributed[job] = 399_059_000
    row = backend.last(job)
    assert row.job_id == 42 and row.values["cpu_unattributed"] == 346
    assert {key: value for key, value in row.values.items() if key != "cpu_unattributed"} == V1_VALUES
    assert backend.last(job) is None and fake.host.kept == 0


def test_the_last_row_has_what_can_still_be_read_and_else_what_was_read_last(fake, backend, monkeypatch):
    job = make_v1(fake)
    backend.attributed[job] = 0
    list(backend.sample([job]))
    fake.write("/cgroup/pids/oar/bob_42/pids.peak", "7\n")
    backend.notice(job)
    fake.write("/cgroup/cpuacct/oar/bob_42/cpuacct.usage", "400000000\n")
    Removed(monkeypatch, "/pids/", "/memory/")
    backend.attributed[job] = 400_000_000
    values = backend.last(job).values
    assert values == {**V1_VALUES, "cpu_usage": 400_000_000, "pids_peak": 7, "cpu_unattributed": 0}
    assert fake.host.kept == 0


def test_a_last_row_that_could_not_be_read_at_the_end_has_nothing_that_was_not_true_then(fake, backend):
    job = make_v1(fake)
    list(backend.sample([job]))
    usage = V1_VALUES["cpu_usage"]
    backend.attributed[job] = usage + 500_000_000
    list(backend.sample([]))  # its files are closed
    values = backend.last(job).values
    assert values["cpu_usage"] == backend.attributed[job], "it used at least what its tasks did"
    assert "cpu_unattributed" not in values
    assert not IN_USE & values.keys() and values["memory_peak"] == V1_VALUES["memory_peak"]


def test_a_last_row_is_whole_where_its_tasks_had_ended_when_it_was_read(fake, backend):
    job = make_v1(fake)
    backend.attributed[job] = V1_VALUES["cpu_usage"] - 5_000_000
    backend.notice(job)
    list(backend.sample([]))
    backend.attributed[job] += 1_000_000
    assert backend.last(job).values == {**V1_VALUES, "cpu_unattributed": 4_000_000}


def test_more_attributed_than_used_is_counted_and_reported(fake, backend, caplog):
    job = make_v1(fake)
    backend.attributed[job] = int(1.005 * V1_VALUES["cpu_usage"])
    list(backend.sample([job]))
    assert backend.counters()["overattributed"] == 0
    backend.attributed[job] = int(1.02 * V1_VALUES["cpu_usage"]) + 20_000_000
    (row,) = backend.sample([job])
    assert row.values["cpu_unattributed"] == 0
    assert backend.counters() == {"file_failures": 0, "overattributed": 1}
    assert "more CPU time is attributed than the cgroup used job=42" in caplog.text


# The running kernel

WORK = """
import mmap, os, sys, threading, time
kept = bytearray(100 << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
with open(sys.argv[1], "r+b", buffering=0) as file:
    block = mmap.mmap(-1, 1 << 20)
    direct = os.open(sys.argv[1], os.O_RDWR | getattr(os, "O_DIRECT", 0))
    for _ in range(8): os.write(direct, block)
    os.lseek(direct, 0, 0)
    for _ in range(4): os.readv(direct, [block])
for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
end = time.process_time() + 0.5
while time.process_time() < end: pass
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def live(cgroups):
    """A job in every v1 controller of this machine, as the backend sees it, and the backend."""
    made = cgroups.job("bob_42", V1_CONTROLLERS)
    job = OneJob(Host(), **made.directories)
    backend = CgroupBackend(Host())
    backend.open()
    yield made, job, backend
    backend.close()


def start_work(made, file):
    process = made.start(sys.executable, "-S", "-c", WORK, str(file), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def file_on_disk():
    """A file on a block device."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        device = os.stat(file.name).st_dev
        if not Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
            skip_refused("no block device under /var/tmp")
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


@pytest.mark.live
def test_live_v1_equals_what_proc_says(live, file_on_disk):
    made, job, backend = live
    if "cpuacct" not in made.directories:
        skip_refused("no cgroup v1 cpuacct")
    list(backend.sample([job]))  # descriptors are kept from here on, so later values come through them
    process = start_work(made, file_on_disk)
    values = values_of(backend, job)
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    tick_ns = 1e9 / os.sysconf("SC_CLK_TCK")
    used_ns = (int(stat[11]) + int(stat[12])) * tick_ns
    assert values["cpu_usage"] == pytest.approx(used_ns, abs=5 * tick_ns, rel=0.1)  # the shell that was there before
    assert values["cpu_user"] + values["cpu_system"] == pytest.approx(values["cpu_usage"], abs=5 * tick_ns, rel=0.1)
    assert values["cpus_allocated"] == len(os.sched_getaffinity(process.pid))
    assert values["nr_throttled"] == 0
    if "memory" in made.directories:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        anon = int(status["RssAnon"].split()[0]) * 1024
        assert anon > 100 << 20
        assert values["memory_anon"] == pytest.approx(anon, rel=0.03)
        assert values["memory_current"] >= values["memory_anon"]
        assert values["memory_peak"] >= values["memory_current"] - (1 << 20)
        assert values["memory_pgfault"] == pytest.approx(int(stat[7]), rel=0.1)  # the shell had some before it joined
        assert "memory_limit" not in values and values["memory_oom_kills"] == 0
    if "pids" in made.directories:
        assert values["pids_current"] == len(os.listdir(f"/proc/{process.pid}/task")) == 4
    assert not PRESSURE & set(values)
    assert backend._failures == 0


@pytest.mark.live
def test_live_io_equals_what_the_process_did_or_is_missing(live, file_on_disk):
    made, job, backend = live
    if "blkio" not in made.directories:
        skip_refused("no cgroup v1 blkio")
    start_work(made, file_on_disk)
    values = values_of(backend, job)
    top = cgroup_mount("blkio") / "blkio.throttle.io_service_bytes"
    if not has_counted(top.read_bytes()):
        assert not IO & set(values)  # Linux 5.16 to 6.4; 6.10 and later, without a limit on any disk
        return
    assert 8 << 20 <= values["io_write_bytes"] < 12 << 20
    assert values["io_read_bytes"] >= 4 << 20
    assert values["io_write_ops"] >= 8 and values["io_read_ops"] >= 4


@pytest.mark.live
def test_live_limits_and_throttling_are_those_that_were_set(live):
    made, job, backend = live
    if not {"cpu", "memory", "pids"} <= set(made.directories):
        skip_refused("no cgroup v1 cpu, memory or pids")
    (made.directories["memory"] / "memory.limit_in_bytes").write_text(str(512 << 20))
    (made.directories["pids"] / "pids.max").write_text("77")
    (made.directories["cpu"] / "cpu.cfs_quota_us").write_text("20000")
    process = made.start(sys.executable, "-S", "-c", "while True: pass")
    time.sleep(0.5)
    values = values_of(backend, job)
    process.kill()
    assert (values["memory_limit"], values["pids_limit"]) == (512 << 20, 77)
    assert values["nr_periods"] >= values["nr_throttled"] > 0 and values["throttled_time"] > 0
    assert values["cpu_usage"] < 400_000_000


@pytest.mark.live
def test_live_a_process_killed_for_want_of_memory_is_counted(live):
    made, job, backend = live
    if "memory" not in made.directories:
        skip_refused("no cgroup v1 memory")
    (made.directories["memory"] / "memory.limit_in_bytes").write_text(str(64 << 20))
    swap = made.directories["memory"] / "memory.memsw.limit_in_bytes"
    if swap.exists():
        swap.write_text(str(66 << 20))  # were it the same, it would be reached first, and counted apart
    process = made.start(sys.executable, "-S", "-c", "kept = b'1' * (200 << 20)")
    assert process.wait(30) == -signal.SIGKILL
    values = values_of(backend, job)
    assert values["memory_oom_kills"] == 1 and values["memory_limit_hits"] > 0
    assert values["memory_limit"] == 64 << 20 >= values["memory_peak"] > 32 << 20


@pytest.mark.live
def test_live_a_process_killed_in_a_group_inside_is_counted(live):
    made, job, backend = live
    if "memory" not in made.directories:
        skip_refused("no cgroup v1 memory")
    inside = made.directories["memory"] / "step_0"
    inside.mkdir()
    try:
        (inside / "memory.limit_in_bytes").write_text(str(64 << 20))  # the job itself has none
        script = f"echo $$ >{inside}/cgroup.procs; exec {sys.executable} -S -c \"kept = b'1' * (200 << 20)\""
        assert made.start("sh", "-c", script).wait(30) == -signal.SIGKILL
        found = values_of(backend, job)
        assert found["memory_oom_kills"] == 1
        assert found["memory_limit_hits"] == int((inside / "memory.failcnt").read_text()) > 0
    finally:
        inside.rmdir()


@pytest.mark.live
def test_live_last_row_of_a_removed_job(live):
    made, job, backend = live
    attributed = {}
    backend.use_value("cpu_attributed", attributed.get)
    process = made.start("sleep", "60")
    backend.notice(job)
    process.kill()
    process.communicate()
    for directory in dict.fromkeys(made.directories.values()):
        for _ in range(100):
            try:
                directory.rmdir()
            except OSError:
                time.sleep(0.02)
            else:
                break
    attributed[job] = 0
    values = backend.last(job).values
    assert values["cpu_usage"] > 0
    assert "cpu_unattributed" not in values, "what it used after it was read last is not known"
    assert values["cpus_allocated"] >= 1
    assert backend._failures == 0
    assert list(backend.sample([])) == []


@pytest.mark.live
def test_live_v2_gives_cpu_time_and_pressure(root):
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    points = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    if not points:
        skip_refused("no cgroup v2")
    directory = points[0] / f"colmet-test-{os.getpid()}"
    directory.mkdir()
    backend = CgroupBackend(Host())
    try:
        script = f"echo $$ > {directory}/cgroup.procs; " + "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read x"
        with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE) as process:
            job = OneJob(Host(), unified=directory)
            list(backend.sample([job]))
            time.sleep(1.0)
            values = values_of(backend, job)
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            process.kill()
        tick_ns = 1e9 / os.sysconf("SC_CLK_TCK")
        assert values["cpu_usage"] == pytest.approx((int(stat[11]) + int(stat[12])) * tick_ns, abs=4 * tick_ns, rel=0.1)
        if (directory / "cpu.pressure").exists():
            assert values["cpu_pressure_some"] >= values["cpu_pressure_full"] >= 0
        assert backend._failures == 0
    finally:
        backend.close()
        for _ in range(100):
            try:
                directory.rmdir()
                break
            except OSError:
                time.sleep(0.02)
