"""A real GPU: what the backend says against nvidia-smi, and a CUDA program in a job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.common.host.host import Host
from colmet.common.schema import Table
from colmet.node.backends.nvidia import GPUS, JOBS, NvidiaBackend
from colmet.node.gpus.allocation import VARIABLES
from colmet.node.gpus.nvml import NvmlReader
from colmet.node.gpus.smi import SmiReader
from colmet.node.jobs.job import Job
from tests.support.machine import CgroupRoot

pytestmark = pytest.mark.live

MIB = 1 << 20
SIZE = 512 * MIB
# Through the driver alone: no toolkit is needed. It writes to the GPU's memory until a line comes on its input.
CUDA = f"""
import ctypes, select, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{{name}}: CUDA error {{status}}")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t({SIZE}))
print("computes", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for value in range(200):
        call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(value), ctypes.c_size_t({SIZE}))
    call("cuCtxSynchronize")
"""


@pytest.fixture(autouse=True)
def gpu():
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has no NVIDIA GPU")


@pytest.fixture
def backend():
    made = NvidiaBackend(Host())
    made.open()
    assert isinstance(made._reader, NvmlReader), "nvidia-ml-py is not installed"
    yield made
    made.close()


@pytest.fixture
def start():
    """Start a command in a job of its own: a cgroup where this machine lets us make one, else its process alone."""
    with contextlib.ExitStack() as stack:
        cgroups = None
        with contextlib.suppress(OSError, pytest.skip.Exception, pytest.fail.Exception):
            cgroups = CgroupRoot(stack)

        def started(job_id, *command, **environment):
            inherited = {name: text for name, text in os.environ.items() if name not in VARIABLES}
            options = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "env": {**inherited, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environment},
            }
            if cgroups is None:
                process = subprocess.Popen(command, text=True, **options)
                stack.callback(process.communicate)
                stack.callback(process.kill)
                return Job(Host(), job_id, pids=[process.pid]), process
            group = cgroups.job(f"bob_{job_id}")
            stack.callback(group.close)
            return Job(Host(), job_id, "bob", [str(group.path)]), group.start(*command, **options)

        yield started


def sample(backend, *jobs):
    for job in jobs:
        job.forget_tasks()
    samples = list(backend.sample(backend.ask(jobs)))
    for schema in (None, GPUS, JOBS):
        Table.from_samples(schema or backend.schema, 0, [one for one in samples if one.schema == schema])
    return (
        {one.job_id: one.values for one in samples if one.schema is None},
        {one.values["uuid"].decode(): one.values for one in samples if one.schema == GPUS},
        {(one.job_id, one.values["uuid"].decode()): one.values for one in samples if one.schema == JOBS},
    )


def end(process):
    process.stdin.write("end\n")
    process.stdin.flush()
    process.wait(30)


def nvidia_smi(*fields):
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {cells[0]: cells for cells in ([cell.strip() for cell in line.split(",")] for line in said.splitlines())}


def test_live_values_are_those_of_nvidia_smi(backend):
    _, gpus, _ = sample(backend)
    said = nvidia_smi(
        *("uuid", "name", "pci.bus_id", "index", "memory.total", "memory.used", "temperature.gpu", "power.draw"),
        *("enforced.power.limit", "pstate"),
    )
    assert {uuid for uuid, row in gpus.items() if not row["parent"]} == set(said)
    for uuid, cells in said.items():
        row = gpus[uuid]
        assert [row["name"].decode(), row["pci"].decode(), str(row["index"])] == cells[1:4]
        assert row["memory_total"] // MIB == int(cells[4])
        assert row["memory_used"] / MIB == pytest.approx(int(cells[5]), abs=64)
        assert row["temperature"] == pytest.approx(int(cells[6]), abs=5)
        assert row["power"] == pytest.approx(float(cells[7]), rel=0.3, abs=10)
        if not cells[8].startswith("["):
            assert row["power_limit"] == pytest.approx(float(cells[8]), abs=1)
        assert row["power"] > 1 and row["energy"] > 0 and f"P{row['performance_state']}" == cells[9]


def test_live_both_ways_tell_the_same():
    readers = [NvmlReader(), SmiReader(Host())]
    for reader in readers:
        reader.open()
    nvml, smi = ({gpu.uuid: gpu for gpu in reader.read() if not gpu.parent} for reader in readers)
    for reader in readers:
        reader.close()
        assert reader.failures == reader.lost == 0
    assert nvml.keys() == smi.keys()
    for uuid, one in nvml.items():
        other = smi[uuid]
        assert (one.name, one.pci, one.index) == (other.name, other.pci, other.index)
        assert other.minor in (one.minor, None)
        missing = {name for name, value in other.values.items() if value is None and one.values[name] is not None}
        assert not missing, "nvidia-smi prints it, and we do not understand"
        for name in ("power_limit", "memory_total", "performance_state"):
            if other.values[name] is not None:
                assert one.values[name] == pytest.approx(other.values[name], rel=0.01), name


def test_live_a_cuda_program_is_its_jobs_and_no_others(backend, start):
    before_rows = sample(backend)[1]
    mine, process = start(42, sys.executable, "-c", CUDA, CUDA_VISIBLE_DEVICES="0")
    idle, _ = start(43, "sleep", "600", CUDA_VISIBLE_DEVICES="0")
    other, _ = start(44, "sleep", "600")
    assert process.stdout.readline() == "computes\n"
    until = time.monotonic() + 20
    while True:
        jobs, gpus, parts = sample(backend, mine, idle, other)
        used = [uuid for (job, uuid), part in parts.items() if job == 42 and part["processes"]]
        if time.monotonic() > until or (used and (jobs[42]["utilization-gpu"] or 0) >= 50):
            break
        time.sleep(0.5)
    (uuid,) = used
    row, part, before = gpus[uuid], parts[42, uuid], before_rows[uuid]
    print(f"before {before}\nnow {row}\njob {jobs[42]}\npart {part}")
    assert part["processes"] == 1 and part["memory_used"] >= SIZE
    assert row["memory_used"] >= before["memory_used"] + SIZE
    assert row["utilization_gpu"] >= 50 and row["energy"] > before["energy"]
    assert row["power"] > before["power"] and jobs[42]["power"] == pytest.approx(row["power"], abs=1)
    assert jobs[42]["memory-used"] == row["memory_used"] // MIB
    assert (jobs[42]["gpus"], jobs[42]["gpus_idle"], jobs[42]["gpus_shared"]) == (1, 0, 0)
    # whoever holds it without using it is seen, and whoever does neither has no rows
    assert (parts[43, uuid]["held"], parts[43, uuid]["processes"], parts[43, uuid]["memory_used"]) == (1, 0, 0)
    assert 44 not in jobs and row["jobs"] == b"42,43"
    end(process)
    until = time.monotonic() + 20
    while parts[42, uuid]["processes"] and time.monotonic() < until:
        time.sleep(0.2)
        jobs, gpus, parts = sample(backend, mine, idle, other)
    assert (parts[42, uuid]["held"], parts[42, uuid]["processes"], parts[42, uuid]["memory_used"]) == (1, 0, 0)
    assert gpus[uuid]["memory_used"] < before["memory_used"] + SIZE


def test_live_the_command_shows_the_gpu(start):
    _, process = start(42, sys.executable, "-c", CUDA, CUDA_VISIBLE_DEVICES="0")
    assert process.stdout.readline() == "computes\n"
    command = [sys.executable, "-m", "colmet.node.main", "--once", "--enable-nvidia", "-p", str(process.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    for table in ("nvidiastats_default", "nvidiagpus_default", "nvidiajobs_default"):
        assert table in done.stdout
    end(process)
