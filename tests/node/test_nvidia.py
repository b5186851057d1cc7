"""NVIDIA GPUs, through the real reader and a stand-in for NVML's Python module, and through a made-up nvidia-smi."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.schema import Table
from colmet.node.backends.nvidia import GPUS, JOBS, SCHEMA, NvidiaBackend
from colmet.node.gpus.allocation import Devices, parse_devices, parse_resources
from colmet.node.gpus.nvml import RENEW_S
from colmet.node.jobs.job import Job
from colmet.node.once import format_table
from tests.support import nvml_replay
from tests.support.gpu_records import V100
from tests.support.nvml_replay import DATA, LOST, NOT_LOADED, Replay
from tests.support.place import skip_refused
from tests.support.waiting import Clock

MIB, GIB = 1 << 20, 1 << 30
RECORDED = sorted(path.stem for path in DATA.glob("*.json"))


class OneJob(Job):
    """A job whose processes and devices cgroup are known."""

    def __init__(self, host, job_id, pids=(), devices=None):
        super().__init__(host, job_id, pids=pids)
        self.devices = devices

    @property
    def identity(self):
        return f"job {self.id}"

    def directory(self, controller):
        return self.devices if controller == "devices" else None


class Node:
    """A fake root, the backend on it, and jobs."""

    def __init__(self, fake, nvml=None):
        self.fake = fake
        self.nvml = nvml
        self.backend = NvidiaBackend(fake.host)

    def job(self, job_id, *pids, environment=None, devices=None, resources=None):
        for pid in pids:
            text = "".join(f"{name}={value}\0" for name, value in (environment or {}).items())
            self.fake.write(f"/proc/{pid}/environ", "HOME=/home/bob\0" + text)
        directory = None
        if devices is not None:
            directory = f"/cgroup/devices/oar/bob_{job_id}"
            self.fake.write(f"{directory}/devices.list", devices)
        if resources is not None:
            self.fake.write(f"/var/lib/oar/{job_id}_resources", resources)
            self.fake.write("/proc/sys/kernel/hostname", "gpu-1\n")
        return OneJob(self.fake.host, job_id, pids, directory)

    def sample(self, *jobs):
        """Rows of the three tables: by job, by uuid, by (job, uuid)."""
        samples = list(self.backend.sample(self.backend.ask(jobs)))
        tables = {schema.name: [one for one in samples if one.schema == schema] for schema in (GPUS, JOBS)}
        tables[SCHEMA.name] = [one for one in samples if one.schema is None]
        read = {}
        for schema in (SCHEMA, GPUS, JOBS):
            table = Table.from_samples(schema, 0, tables[schema.name])
            read[schema.name] = list(table.samples())
        gpus = {row.values["uuid"].decode(): row.values for row in read[GPUS.name]}
        assert all(row.job_id == 0 for row in read[GPUS.name]) and len(gpus) == len(read[GPUS.name])
        parts = {(row.job_id, row.values["uuid"].decode()): row.values for row in read[JOBS.name]}
        return {row.job_id: row.values for row in read[SCHEMA.name]}, gpus, parts


@pytest.fixture
def node(fake, monkeypatch):
    """Make a node with what was recorded of a machine."""
    made = []

    def make(name):
        nvml = Replay(name)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        made.append(Node(fake, nvml))
        made[-1].backend.open()
        return made[-1]

    yield make
    for one in made:
        one.backend.close()
        one.backend.close()
        assert not one.nvml.is_on


# -- through NVML --


def test_a_job_on_one_gpu_has_its_values_as_06_named_them(node):
    t4 = node("t4")
    t4.nvml.devices[0].runs((500, 900 * MIB))
    jobs, _, parts = t4.sample(t4.job(42, 499, 500))
    assert jobs == {
        42: {
            **{"power": 27, "temperature": 41, "utilization-gpu": 35, "utilization-memory": 12},
            **{"memory-total": 15360, "memory-free": 15360 - 449, "memory-used": 3},
            **{"gpus": 1, "gpus_idle": 0, "gpus_shared": 0},
        }
    }
    part = parts[42, t4.nvml.devices[0].uuid]
    assert (part["processes"], part["memory_used"]) == (1, 900 * MIB)
    assert part["held"] is None and part["held_by"] is None, "nobody says what it holds"


def test_each_gpu_has_a_row_in_base_units(node):
    t4 = node("t4")
    _, gpus, _ = t4.sample()
    row = gpus[t4.nvml.devices[0].uuid]
    assert (row["name"], row["pci"], row["index"]) == (b"Tesla T4", b"00000000:3B:00.0", 0)
    assert (row["power"], row["power_limit"], row["energy"]) == (27.35, 70.0, 27350 * 86400 * 1000)
    assert (row["memory_total"], row["memory_used"], row["memory_reserved"]) == (15 * GIB, 3 * MIB, 446 * MIB)
    assert (row["clock_sm"], row["clock_memory"], row["performance_state"]) == (1590, 5000, 0)
    assert (row["clock_event_reasons"], row["ecc_corrected_aggregate"], row["ecc_corrected_volatile"]) == (1, 7, 0)
    assert (row["pcie_tx"], row["pcie_rx"], row["pcie_replays"]) == (1200, 350, 2)
    assert (row["processes"], row["processes_no_job"], row["jobs"]) == (0, 0, None)
    assert row["temperature_memory"] is None and row["fan"] is None, "this one has neither"


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_machine_can_be_read_and_shown(node, name):
    machine = node(name)
    _, gpus, _ = machine.sample()
    recorded = json.loads((DATA / f"{name}.json").read_text())["devices"]
    assert len(gpus) == len(recorded) + sum(len(one["instances"]) for one in recorded)
    for row in gpus.values():
        assert row["memory_total"] >= row["memory_used"] >= 0
    samples = [one for one in machine.backend.sample([]) if one.schema == GPUS]
    assert "memory_total" in "\n".join(format_table(Table.from_samples(GPUS, 0, samples)))
    assert machine.backend.counters() == {"gpus_lost": 0, "part_failures": 0, "jobs_unread": 0}


def test_two_jobs_on_different_gpus_are_kept_apart(node):
    dgx = node("a100-8")
    dgx.nvml.devices[1].runs((500, 30 * GIB), (501, 2 * GIB))
    dgx.nvml.devices[5].runs((700, 9 * GIB))
    one, other = (dgx.nvml.devices[n].uuid for n in (1, 5))
    jobs, gpus, parts = dgx.sample(dgx.job(42, 500, 501), dgx.job(43, 700))
    assert (jobs[42]["power"], jobs[42]["utilization-gpu"], jobs[42]["temperature"]) == (62, 10, 31)
    assert (jobs[43]["power"], jobs[43]["utilization-gpu"], jobs[43]["temperature"]) == (66, 50, 35)
    assert set(parts) == {(42, one), (43, other)}
    assert (parts[42, one]["processes"], parts[42, one]["memory_used"]) == (2, 32 * GIB)
    assert (gpus[one]["jobs"], gpus[other]["jobs"]) == (b"42", b"43")
    assert [row["jobs"] for uuid, row in gpus.items() if uuid not in (one, other)] == [None] * 6


def test_several_gpus_of_a_job_are_summed_and_averaged(node):
    dgx = node("a100-8")
    for n in (2, 3, 7):
        dgx.nvml.devices[n].runs((500, GIB))
    jobs, _, _ = dgx.sample(dgx.job(42, 500))
    assert jobs[42]["power"] == 63 + 64 + 68
    assert jobs[42]["temperature"] == 37
    assert (jobs[42]["utilization-gpu"], jobs[42]["utilization-memory"]) == (40, 20)
    assert jobs[42]["memory-total"] == 3 * 81920
    assert jobs[42]["memory-used"] == 402 + 403 + 407


def test_a_sum_of_which_a_part_is_unknown_is_missing(node):
    dgx = node("a100-8")
    for n in (0, 1):
        dgx.nvml.devices[n].runs((500, GIB))
    dgx.nvml.devices[1].answers["nvmlDeviceGetPowerUsage"] = {"error": nvml_replay.NOT_SUPPORTED}
    jobs, _, _ = dgx.sample(dgx.job(42, 500))
    assert jobs[42]["power"] is None and jobs[42]["memory-total"] == 2 * 81920


def test_two_jobs_on_one_gpu_are_reported_to_share_it(node):
    t4 = node("t4")
    t4.nvml.devices[0].runs((500, GIB), (700, 2 * GIB))
    jobs, gpus, parts = t4.sample(t4.job(43, 700), t4.job(42, 500))
    uuid = t4.nvml.devices[0].uuid
    assert jobs[42]["gpus_shared"] == jobs[43]["gpus_shared"] == 1
    assert (parts[42, uuid]["memory_used"], parts[43, uuid]["memory_used"]) == (GIB, 2 * GIB)
    assert gpus[uuid]["jobs"] == b"42,43"


def test_processes_of_no_job_are_counted_and_given_to_none(node):
    t4 = node("t4")
    t4.nvml.devices[0].runs((900, GIB), (500, GIB))
    _, gpus, parts = t4.sample(t4.job(42, 500))
    (row,) = gpus.values()
    assert (row["processes"], row["processes_no_job"]) == (2, 1)
    assert [part["memory_used"] for part in parts.values()] == [GIB]


def test_memory_of_a_process_that_the_driver_does_not_tell_is_missing(node):
    t4 = node("t4")
    t4.nvml.devices[0].runs((500, None), (501, GIB))
    _, _, parts = t4.sample(t4.job(42, 500, 501))
    (part,) = parts.values()
    assert (part["processes"], part["memory_used"]) == (2, None)


def test_utilisation_of_processes_is_the_mean_since_the_last_sample(node):
    t4 = node("t4")
    device = t4.nvml.devices[0]
    device.runs((500, GIB), (501, GIB), (700, GIB))

    def took(*samples):
        device.answers["nvmlDeviceGetProcessUtilization(0)"] = [
            {"pid": pid, "timeStamp": at, "smUtil": share, "memUtil": 0} for pid, at, share in samples
        ]

    mine, other = t4.job(42, 500, 501), t4.job(43, 700)
    uuid = device.uuid
    took((500, 1000, 20), (500, 2000, 40), (501, 2000, 7), (700, 2000, 3))
    _, _, parts = t4.sample(mine, other)
    assert (parts[42, uuid]["utilization_sm"], parts[43, uuid]["utilization_sm"]) == (37.0, 3.0)
    took((500, 2000, 40), (500, 3000, 90), (501, 3000, 4294967295))
    _, _, parts = t4.sample(mine, other)
    assert (parts[42, uuid]["utilization_sm"], parts[43, uuid]["utilization_sm"]) == (90.0, None)


def test_what_an_old_gpu_and_an_old_driver_do_not_tell_is_missing(node):
    old = node("gtx1080-old-driver")
    jobs, gpus, parts = old.sample(old.job(42, 4101))
    (row,) = gpus.values()
    assert {"energy", "memory_reserved", "temperature_memory", "ecc_corrected_volatile"} <= {
        name for name, value in row.items() if value is None
    }
    assert (row["fan"], row["clock_event_reasons"], row["memory_used"]) == (28, 1, 120 * MIB)
    assert jobs[42]["power"] == 9
    (part,) = parts.values()
    assert part["memory_used"] == 120 * MIB


def test_processes_that_cannot_be_listed_are_missing_and_no_idleness(node):
    t4 = node("t4")
    for version in ("_v3", "_v2", ""):
        name = f"nvmlDeviceGetComputeRunningProcesses{version}"
        t4.nvml.devices[0].answers[name] = {"error": nvml_replay.NOT_SUPPORTED}
    jobs, gpus, parts = t4.sample(t4.job(42, 500, environment={"SLURM_JOB_GPUS": "0"}))
    (part,), (row,) = parts.values(), gpus.values()
    assert (part["held"], part["processes"], part["memory_used"]) == (1, None, None)
    assert (row["processes"], row["processes_no_job"]) == (None, None)
    assert (jobs[42]["gpus"], jobs[42]["gpus_idle"], jobs[42]["gpus_shared"]) == (1, None, None)


@pytest.mark.parametrize(
    ("name", "answer", "column"),
    [
        ("nvmlDeviceGetPowerUsage", 2**32 - 1, "power"),
        ("nvmlDeviceGetTotalEnergyConsumption", 2**64 - 1, "energy"),
        ("nvmlDeviceGetTotalEnergyConsumption", 2**62, "energy"),
        ("nvmlDeviceGetTemperature(0)", -5, "temperature"),
        ("nvmlDeviceGetPerformanceState", 32, "performance_state"),
        ("nvmlDeviceGetFanSpeed", "fast", "fan"),
    ],
)
def test_what_is_no_value_is_missing(node, name, answer, column):
    t4 = node("t4")
    t4.nvml.devices[0].answers[name] = answer
    _, gpus, _ = t4.sample()
    assert [row[column] for row in gpus.values()] == [None]


def test_an_answer_that_fails_is_missing_counted_and_reported(node, caplog):
    t4 = node("t4")
    t4.nvml.devices[0].answers["nvmlDeviceGetPowerUsage"] = {"error": 999}
    _, gpus, _ = t4.sample()
    assert [row["power"] for row in gpus.values()] == [None]
    assert t4.backend.counters()["part_failures"] == 1 and "nvmlDeviceGetPowerUsage" in caplog.text


# -- MIG --


def test_a_job_on_an_instance_has_that_and_not_its_gpu(node):
    mig = node("a100-mig")
    instances = mig.nvml.devices[0].instances
    instances[0].runs((500, 8 * GIB))
    instances[3].runs((700, GIB))
    mig.nvml.devices[0].runs((500, 8 * GIB), (700, GIB))
    mine, other = instances[0].uuid, instances[3].uuid
    jobs, gpus, parts = mig.sample(mig.job(42, 500), mig.job(43, 700))
    assert set(parts) == {(42, mine), (43, other)}
    assert parts[42, mine]["memory_used"] == 8 * GIB
    assert (jobs[42]["memory-total"], jobs[42]["temperature"], jobs[42]["gpus_shared"]) == (40192, 30, 0)
    assert jobs[42]["power"] is None, "that of the whole GPU is not the job's"
    assert jobs[42]["utilization-gpu"] is None
    assert (gpus[mine]["parent"].decode(), gpus[mine]["power"]) == (mig.nvml.devices[0].uuid, None)
    assert (gpus[mine]["jobs"], gpus[other]["jobs"]) == (b"42", b"43")
    assert gpus[mig.nvml.devices[0].uuid]["jobs"] == b"42,43"
    assert b"3g.40gb" in gpus[mine]["name"]


def capabilities(mig):
    """The driver's files that say which device stands for what."""
    base = "/proc/driver/nvidia/capabilities/gpu0/mig"
    for (gpu, compute), minors in {(2, 0): (21, 22), (3, 0): (30, 31), (9, 0): (84, 85)}.items():
        for path, minor in zip((f"gi{gpu}/access", f"gi{gpu}/ci{compute}/access"), minors):
            mig.fake.write(f"{base}/{path}", f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    mig.fake.write("/proc/devices", "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n")


def test_an_instance_is_held_by_its_capabilities(node):
    mig = node("a100-mig")
    capabilities(mig)
    one, whole = mig.nvml.devices[0].instances[1].uuid, mig.nvml.devices[1].uuid
    cgroup = "c 195:255 rwm\nc 195:0 rwm\nc 237:30 r\nc 237:30 rw\nc 237:31 rw\nc 237:21 rw\n"
    oar = "gpudevice = '/dev/nvidia1,/dev/nvidia-caps/nvidia-cap1' , host = 'gpu-1'"
    _, _, parts = mig.sample(mig.job(42, devices=cgroup), mig.job(43, resources=oar))
    assert {key: (row["held"], row["held_by"]) for key, row in parts.items()} == {
        (42, one): (1, b"devices"),
        (43, whole): (1, b"oar"),
    }


# -- who holds what --


def test_a_job_that_holds_a_gpu_and_does_not_use_it_is_seen(node):
    dgx = node("a100-8")
    dgx.nvml.devices[2].runs((500, GIB))
    idle, used = dgx.nvml.devices[3].uuid, dgx.nvml.devices[2].uuid
    job = dgx.job(42, 500, devices="c 1:3 rwm\nc 195:255 rw\nc 195:0 rw\nc 195:1 rw\nc *:* m\n")
    jobs, gpus, parts = dgx.sample(job)
    shown = {uuid: (row["held"], row["processes"], row["memory_used"]) for (_, uuid), row in parts.items()}
    assert shown == {used: (1, 1, GIB), idle: (1, 0, 0)}, "device numbers are not nvidia-smi's numbers here"
    assert (jobs[42]["gpus"], jobs[42]["gpus_idle"]) == (2, 1)
    assert gpus[idle]["jobs"] == b"42"


RESOURCES = """\
 type = 'default' , host = 'gpu-0' , network_address = 'gpu-0.site' , gpudevice = '7' , core = '1'
 type = 'default' , host = 'gpu-1' , network_address = 'gpu-1.site' , gpudevice = '2' , core = '9'
 type = 'default' , host = 'gpu-1' , network_address = 'gpu-1.site' , gpudevice = '/dev/nvidia0' , core = '10'
 type = 'licence' , gpudevice = '5'
"""


def test_oars_resources_say_what_is_held_where_the_cgroup_lists_nothing(node):
    """OAR 2 denies devices one by one, which leaves `a *:* rwm` in the list."""
    dgx = node("a100-8")
    _, _, parts = dgx.sample(dgx.job(42, 500, devices="a *:* rwm\n", resources=RESOURCES))
    assert {uuid for _, uuid in parts} == {dgx.nvml.devices[n].uuid for n in (0, 2)}
    assert {row["held_by"] for row in parts.values()} == {b"oar"}


@pytest.mark.parametrize(
    ("environment", "indices"),
    [
        ({"SLURM_JOB_GPUS": "1,3"}, [1, 3]),
        ({"SLURM_JOB_GPUS": "1,3", "CUDA_VISIBLE_DEVICES": "0,1"}, [1, 3]),
        ({"SLURM_STEP_GPUS": "6", "SLURM_JOB_GPUS": "5,6"}, [5, 6]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5a11d110"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2", "GPU_DEVICE_ORDINAL": "2,4"}, [2]),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "GPU_DEVICE_ORDINAL": "4"}, [4]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,99"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),
        ({"CUDA_VISIBLE_DEVICES": "$(reboot)"}, []),
        ({"CUDA_VISIBLE_DEVICES": ",".join(["0"] * 1000)}, []),
        ({"CUDA_VISIBLE_DEVICES": "\udcff0"}, []),
    ],
)
def test_the_environment_says_what_is_held_where_nobody_else_does(node, environment, indices):
    dgx = node("a100-8")
    job = dgx.job(42, 500)
    text = "".join(f"{name}={value}\0" for name, value in environment.items())
    dgx.fake.write("/proc/500/environ", text.encode("ascii", "surrogateescape"))
    _, _, parts = dgx.sample(job)
    assert {uuid for _, uuid in parts} == {dgx.nvml.devices[n].uuid for n in indices}
    assert {row["held_by"] for row in parts.values()} <= {b"environment"}


def test_a_job_whose_processes_cannot_be_read_is_left_out_and_counted(node, caplog):
    t4 = node("t4")
    job = t4.job(42, 500, environment={"SLURM_JOB_GPUS": "0"})

    def fail():
        raise PermissionError(13, "Permission denied")

    job.pids = fail
    jobs, _, parts = t4.sample(job)
    assert jobs == {} and parts == {}, "idle is more than we know"
    assert t4.backend.counters()["jobs_unread"] == 1 and "job=42" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, None) for text in (b"a *:* rwm\n", b"c *:* rwm\n", b"c 195:* rw\n")),
        (b"c 237:* rw\nc 195:0 rw\n", None),
        (b"c 195:* m\nc *:* m\nb *:* m\n", Devices(frozenset(), frozenset())),
        (b"c 195:0 r\nc 195:1 rw\nb 195:2 rw\nc 195:254 rw\nc 195:255 rwm\n", Devices(frozenset({1}), frozenset())),
        (b"c 195:0 rw\nc 237:12 rw\nc 1:3 rw\n", Devices(frozenset({0}), frozenset({12}))),
        (b"", Devices(frozenset(), frozenset())),
    ],
)
def test_a_list_of_devices(text, said):
    assert parse_devices(text, 237) == said


@pytest.mark.parametrize(
    ("text", "host", "said"),
    [
        (RESOURCES, "gpu-1", {0, 2}),
        (RESOURCES, "gpu-0.site", {7}),
        (RESOURCES, "elsewhere", None),
        ("gpudevice = '' , host = 'a'\n", "other-name", set()),
        ("gpudevice = '0+3' , host = 'a'\n", "other-name", {0, 3}),
        ("host = 'a' , core = '1'\n", "a", None),
        ("gpudevice = '../../etc' , host = 'a'\n", "a", None),
        ("gpudevice = '99999' , host = 'a'\n", "a", None),
        ("", "a", None),
    ],
)
def test_a_list_of_resources(text, host, said):
    found = parse_resources(text, host)
    assert (None if found is None else found.gpus) == said


@pytest.mark.live
def test_live_a_devices_cgroup_lists_what_is_allowed_and_not_what_is_denied(cgroups):
    directory = cgroups.job("bob_42", ["devices"]).directories.get("devices")
    if directory is None:
        skip_refused("no devices of cgroup v1")

    def said():
        return parse_devices((directory / "devices.list").read_bytes(), 237)

    assert said() is None
    (directory / "devices.deny").write_text("c 195:1 rwm")
    assert said() is None, "the kernel lists what was denied now: OAR's resources are not needed any more"
    (directory / "devices.deny").write_text("a")
    for text in ("c 195:0 rw", "c 195:255 rwm", "c *:* m", "c 237:30 rw"):
        (directory / "devices.allow").write_text(text)
    assert said() == Devices(frozenset({0}), frozenset({30}))


# -- GPUs and drivers that go --


def test_a_lost_gpu_has_no_row_and_the_others_have(node, caplog):
    dgx = node("a100-8")
    reader = dgx.backend._reader
    reader._monotonic = clock = Clock()
    both = "c 195:2 rw\nc 195:3 rw\n"
    lost, other = dgx.nvml.devices[1], dgx.nvml.devices[0]
    assert dgx.sample(dgx.job(42, devices=both))[0][42]["power"] == 123
    lost.error = LOST
    for _ in range(3):
        jobs, gpus, parts = dgx.sample(dgx.job(42, devices=both))
    assert len(gpus) == 7 and lost.uuid not in gpus
    assert jobs[42]["power"] is None, "a part would pass for the whole"
    assert (parts[42, lost.uuid]["held"], parts[42, lost.uuid]["processes"]) == (1, None)
    assert parts[42, other.uuid]["processes"] == 0
    assert dgx.backend.counters()["gpus_lost"] == 3
    assert caplog.text.count("does not answer") == 1
    # reset: it comes back when NVML is started again, which is not tried all the time
    lost.error = None
    assert dgx.nvml.started == 1
    lost.error = LOST
    clock.now += RENEW_S
    dgx.sample()
    assert (dgx.nvml.started, dgx.nvml.stopped) == (2, 1)
    lost.error = None
    clock.now += RENEW_S
    dgx.sample()
    clock.now += RENEW_S
    assert len(dgx.sample()[1]) == 8 and dgx.nvml.started == 3


@pytest.mark.parametrize("error", [nvml_replay.UNINITIALIZED, NOT_LOADED, 18])
def test_a_driver_that_goes_turns_the_backend_off_until_it_is_back(node, error):
    t4 = node("t4")
    t4.nvml.devices[0].answers["nvmlDeviceGetPowerUsage"] = {"error": error}
    with pytest.raises(BackendUnavailable, match="is the NVIDIA driver loaded"):
        t4.sample()
    t4.backend.close()
    assert not t4.nvml.is_on
    t4.nvml.broken = error
    with pytest.raises(BackendUnavailable, match=r"NVML does not start.*; there is no nvidia-smi"):
        t4.backend.open()
    t4.nvml.broken = None
    t4.nvml.devices[0].answers["nvmlDeviceGetPowerUsage"] = 30000
    t4.backend.open()
    assert len(t4.sample()[1]) == 1


def test_a_node_without_gpus_is_unavailable(node, fake, monkeypatch):
    empty = Replay("t4")
    empty.devices = []
    monkeypatch.setitem(sys.modules, "pynvml", empty)
    with pytest.raises(BackendUnavailable, match="NVML finds no NVIDIA GPU"):
        NvidiaBackend(fake.host).open()
    assert not empty.is_on


def test_a_node_without_any_of_it_gets_the_remedy(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BackendUnavailable, match=r"pip install nvidia-ml-py.*there is no nvidia-smi"):
        NvidiaBackend(fake.host).open()


# -- through nvidia-smi --

SECOND = V100.replace("0, GPU-5a10d111-aaaa", "1, GPU-6b10d111-bbbb").replace("43.61", "[Unknown Error]")


class Smi:
    """A made-up nvidia-smi."""

    def __init__(self, fake):
        self.fake = fake
        self.prints("gpus", V100)
        self.prints("processes", "")
        path = fake.write(
            "/usr/bin/nvidia-smi",
            "#!/bin/sh\n"
            f"cd {fake.path}\n"
            'echo "$1" >>asked\n'
            'case "$1" in --query-gpu=*) what=gpus;; --query-compute-apps=gpu_uuid,pid,used_gpu_memory) '
            "what=processes;; *) exit 99;; esac\n"
            '[ "$2" = --format=csv,noheader,nounits ] || exit 98\n'
            '[ ! -e refused ] || for field in $(cat refused); do case "$1" in *$field*) '
            'echo "Field \\"$field\\" is not a valid field to query."; exit 2;; esac; done\n'
            "[ ! -e hangs ] || exec sleep 600\n"
            "cat $what\n"
            "[ ! -e status ] || exit $(cat status)\n",
        )
        path.chmod(0o755)

    def prints(self, what, text):
        self.fake.write(f"/{what}", text + "\n" if text else "")

    def asked(self):
        return (self.fake.path / "asked").read_text().splitlines()


@pytest.fixture
def smi(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return Smi(fake)


def test_nvidia_smi_stands_in_for_nvml(smi, fake, caplog):
    caplog.set_level(logging.WARNING)
    smi.prints("gpus", f"{V100}\n{SECOND}")
    smi.prints("processes", "GPU-5a10d111-aaaa, 500, 900\nGPU-6b10d111-bbbb, 700, [N/A]")
    machine = Node(fake)
    machine.backend.open()
    assert "pip install nvidia-ml-py" in caplog.text
    jobs, gpus, parts = machine.sample(machine.job(42, 500), machine.job(43, 700))
    assert jobs[42] == {
        **{"power": 44, "temperature": 36, "utilization-gpu": 17, "utilization-memory": 3},
        **{"memory-total": 32768, "memory-free": 32490, "memory-used": 5},
        **{"gpus": 1, "gpus_idle": 0, "gpus_shared": 0},
    }
    assert jobs[43]["power"] is None and jobs[43]["temperature"] == 36
    row = gpus["GPU-5a10d111-aaaa"]
    assert (row["power"], row["fan"], row["clock_event_reasons"], row["performance_state"]) == (43.61, None, 1, 0)
    assert (row["memory_reserved"], row["ecc_corrected_aggregate"], row["energy"]) == (273 * MIB, 2, None)
    assert [(part["processes"], part["memory_used"]) for part in parts.values()] == [(1, 900 * MIB), (1, None)]
    machine.backend.close()


@pytest.mark.parametrize(
    ("text", "status", "remedy"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "is the NVIDIA driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "is the NVIDIA driver"),
        ("No devices were found", 6, "is the NVIDIA driver"),
        ("No devices were found", 0, "No devices"),
        ("", 0, "finds no NVIDIA GPU"),
        ("Segmentation fault", 139, "139"),
    ],
)
def test_nvidia_smi_without_a_driver_is_unavailable(smi, fake, text, status, remedy):
    smi.prints("gpus", text)
    fake.write("/status", str(status))
    with pytest.raises(BackendUnavailable, match=remedy):
        NvidiaBackend(fake.host).open()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("gpus", "what?"),
        ("gpus", V100 + ", 1"),
        ("gpus", V100.replace("43.61", "1e9")),
        ("gpus", V100.replace("43.61", "-1")),
        ("gpus", V100.replace("32768", "9" * 18)),
        ("gpus", V100.replace("0, GPU-", "9" * 30 + ", GPU-")),
        ("gpus", V100.replace("0, GPU-", "x, GPU-")),
        ("gpus", V100.replace("GPU-", "gpu ")),
    ],
)
def test_another_form_of_nvidia_smi_is_a_parse_error(smi, fake, what, text):
    machine = Node(fake)
    machine.backend.open()
    smi.prints(what, text)
    with pytest.raises(ParseError, match="nvidia-smi"):
        machine.sample()


INFOROM = "WARNING: infoROM is corrupted at gpu 0000:B3:00.0"


@pytest.mark.parametrize(
    ("gpus", "processes", "status"),
    [
        (f"{V100}\n{SECOND}\n{INFOROM}", "GPU-5a10d111-aaaa, 500, 900", 0),
        (f"{V100}\n{SECOND}", f"GPU-5a10d111-aaaa, 500, 900\n{INFOROM}", 0),
        (f"{INFOROM}\n{V100}\n{SECOND}\n{INFOROM}", f"{INFOROM}\nGPU-5a10d111-aaaa, 500, 900", 14),
    ],
)
def test_a_warning_of_nvidia_smi_is_logged_once_and_takes_no_gpu_away(smi, fake, caplog, gpus, processes, status):
    smi.prints("gpus", gpus)
    smi.prints("processes", processes)
    fake.write("/status", str(status))
    machine = Node(fake)
    machine.backend.open()
    for _ in range(2):
        jobs, rows, _ = machine.sample(machine.job(42, 500))
        assert [row["processes"] for row in rows.values()] == [1, 0]
        assert jobs[42]["gpus"] == 1
    assert caplog.text.count(INFOROM) == 1
    assert machine.backend.counters()["part_failures"] == 0


def test_a_gpu_in_an_unknown_form_is_left_out_and_named(smi, fake, caplog):
    lost = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."
    smi.prints("gpus", f"{V100}\n{lost}")
    machine = Node(fake)
    machine.backend.open()
    assert list(machine.sample()[1]) == ["GPU-5a10d111-aaaa"]
    assert caplog.text.count(lost) == 1
    assert machine.backend.counters()["part_failures"] == 2


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("GPU-5a10d111-aaaa, [N/A], [N/A]", {"GPU-5a10d111-aaaa"}),
        ("GPU-5a10d111-aaaa, 500", {"GPU-5a10d111-aaaa", "GPU-6b10d111-bbbb"}),
        ("GPU-5a10d111-aaaa, many, 900", {"GPU-5a10d111-aaaa", "GPU-6b10d111-bbbb"}),
        ("500, GPU-5a10d111-aaaa, 900", {"GPU-5a10d111-aaaa", "GPU-6b10d111-bbbb"}),
        ("no such query", {"GPU-5a10d111-aaaa", "GPU-6b10d111-bbbb"}),
    ],
)
def test_a_process_that_cannot_be_read_leaves_the_gpus_and_no_wrong_number(smi, fake, caplog, line, unknown):
    smi.prints("gpus", f"{V100}\n{SECOND}")
    smi.prints("processes", f"GPU-6b10d111-bbbb, 700, 900\n{line}")
    machine = Node(fake)
    machine.backend.open()
    _, rows, _ = machine.sample()
    assert {uuid for uuid, row in rows.items() if row["processes"] is None} == unknown
    assert all(row["temperature"] == 36 for row in rows.values())
    assert caplog.text.count(line) == 1
    assert machine.backend.counters()["part_failures"] == 1
