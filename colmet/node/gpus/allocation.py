"""Find the GPUs that a job has been allocated, used or not.

Of three sources, the first one with GPUs counts:

1. The kernel: the job's devices cgroup (v1), if it lists the only devices open to the job. A group made by denying
   some devices lists none of them; device programs of cgroup v2 cannot be read.
2. OAR: the GPUs among the resources of the job, in OAR's file on each node.
3. The start environment of the job's processes. The user can write it, for the user's own job alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from colmet.common.host.host import Host
from colmet.common.host.processes import NO_ANSWER, Processes, Question
from colmet.node.gpus import Gpu, read_number, whole

NVIDIA_MAJOR = 195  # of /dev/nvidiaN, since early drivers
_CONTROL_MINORS = frozenset({254, 255})  # nvidia-modeset and nvidiactl
OAR_DIRECTORY = "/var/lib/oar"
MAX_RESOURCES = 4 << 20  # bytes
MAX_ENVIRONMENT = 256 << 10  # bytes of one process's
MAX_TEXT = 4096  # bytes of a variable's
MAX_PROCESSES = 64  # environments read of one job
MAX_TOKENS = 64
_EAGER_LOOKS = 8  # OAR's file and the environment are read at the first 8 samples of a job, then at every 32nd
_RARE_LOOKS = 32

_DEVICE = re.compile(rb"([abc]) (\d{1,10}|\*):(\d{1,10}|\*) ([rwm]{1,3})")
_PROPERTY = re.compile(r"(?:^|,)\s*(\w{1,64}) = '([^']{0,4096})'")
_FILE_OF_GPU = re.compile(r"(?:/dev/nvidia)?(\d{1,4})")
_FILE_OF_CAPABILITY = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})")
_INDEX = re.compile(r"\d{1,3}")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,72}")

# In order of trust: Slurm's first two name GPUs by their numbers on the node; CUDA's count only the GPUs open to the
# job, if Slurm constrains them.
VARIABLES = (
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)


class Allocation(NamedTuple):
    """The GPUs of a job."""

    uuids: frozenset[str]  # of GPUs without instances, and of instances
    source: str  # devices, oar or environment


class Devices(NamedTuple):
    """Device files open to a job."""

    gpus: frozenset[int]  # the N of /dev/nvidiaN
    capabilities: frozenset[int]  # the N of /dev/nvidia-caps/nvidia-capN, for MIG instances


def parse_devices(data: bytes, capability_major: int | None) -> Devices | None:
    """Return the devices in a ``devices.list`` of cgroup v1, lines ``c 195:0 rwm``; None if it allows all GPUs.

    `capability_major` is the major number of the devices of MIG instances. ValueError for another form.
    """
    gpus, capabilities = set[int](), set[int]()
    for line in data.splitlines():
        match = _DEVICE.fullmatch(line.strip())
        if match is None:
            raise ValueError(line)
        kind, major, minor, access = match.groups()
        if kind == b"b" or not {*b"rw"} <= {*access}:
            continue  # permission to make a device file, not to open it
        if kind == b"a" or major == b"*":
            return None
        if int(major) in (NVIDIA_MAJOR, capability_major):
            if minor == b"*":
                return None
            (gpus if int(major) == NVIDIA_MAJOR else capabilities).add(int(minor))
    return Devices(frozenset(gpus - _CONTROL_MINORS), frozenset(capabilities))


def parse_resources(text: str, host_name: str) -> Devices | None:
    """Return the GPUs of this node in OAR's list of a job's resources; None if it names none.

    A line a resource: `` gpudevice = '0' , host = 'node-1' , type = 'default'``.
    """
    resources = [dict(_PROPERTY.findall(line)) for line in text.split("\n")]
    resources = [one for one in resources if one.get("type", "default") == "default" and "gpudevice" in one]
    names = {one.get("network_address") or one.get("host") or "" for one in resources}
    if len(names) > 1:  # of several nodes; this one may have its domain in one of the two names only
        own_names = [name for name in names if name == host_name] or [
            name for name in names if name.partition(".")[0] == host_name.partition(".")[0]
        ]
        resources = [one for one in resources if (one.get("network_address") or one.get("host")) in own_names]
    if not resources:
        return None
    gpus, capabilities = set(), set()
    for one in resources:
        for token in re.split(r"[,+\s]+", one["gpudevice"].strip()):
            gpu, capability = _FILE_OF_GPU.fullmatch(token), _FILE_OF_CAPABILITY.fullmatch(token)
            if gpu:
                gpus.add(int(gpu[1]))
            elif capability:
                capabilities.add(int(capability[1]))
            elif token:
                return None
    return Devices(frozenset(gpus), frozenset(capabilities))


def find_named(text: str, gpus: Sequence[Gpu]) -> frozenset[str] | None:
    """Return the GPUs in a variable like ``CUDA_VISIBLE_DEVICES``; None for none, or an unknown one.

    `text` has numbers, as nvidia-smi counts, or UUIDs, or unique beginnings of UUIDs.
    """
    tokens = [token.strip() for token in text.split(",")]
    if len(tokens) > MAX_TOKENS:
        return None
    usable = whole(gpus)
    divided = any(gpu.parent for gpu in gpus)
    uuids = set()
    for token in tokens:
        if _INDEX.fullmatch(token) and not divided:  # Slurm numbers GPUs and instances together
            found = [gpu.uuid for gpu in usable if gpu.index == int(token)]
        elif _UUID.fullmatch(token):
            found = [gpu.uuid for gpu in usable if gpu.uuid.startswith(token)]
        else:
            return None
        if len(found) != 1:
            return None
        uuids.add(found[0])
    return frozenset(uuids)


@dataclass
class _Looked:
    """The content of OAR's file and of the environments of a job's processes, and how often they were read."""

    resources: Devices | None = None
    variables: dict[str, set[str]] = field(default_factory=dict)
    reads: int = 0


class Allocations:
    """Finds the GPUs allocated to each job.

    Runs in the thread of a background backend. A user can delay the reading of a process's environment without
    bound, so a thread of `Processes` reads it: one job's processes do not delay the results of the others.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._processes = Processes()
        self._looked: dict[str, _Looked] = {}

    def of(
        self, job_id: int, identity: str, devices: str | None, pids: Sequence[int], gpus: Sequence[Gpu]
    ) -> Allocation | None:
        """Return those of the node's GPUs that are allocated to a job; None if no source names them.

        `identity` is unique among jobs of that id; `devices` is its directory in the devices hierarchy of cgroup v1.
        """
        looked = self._look(job_id, identity, pids)
        for source, allowed in (("devices", self._in_cgroup(devices)), ("oar", looked.resources)):
            uuids = None if allowed is None else self._open_to(allowed, gpus)
            if uuids is not None:
                return Allocation(uuids, source)
        for variable in VARIABLES:
            named = [find_named(text, gpus) for text in looked.variables.get(variable, ())]
            uuids = frozenset().union(*[some for some in named if some is not None])
            if uuids:
                return Allocation(uuids, "environment")
        return None

    def keep(self, identities: Iterable[str]) -> None:
        """Forget every other job."""
        known = set(identities)
        self._looked = {identity: looked for identity, looked in self._looked.items() if identity in known}

    def _look(self, job_id: int, identity: str, pids: Sequence[int]) -> _Looked:
        looked = self._looked.setdefault(identity, _Looked())
        if looked.reads < _EAGER_LOOKS or looked.reads % _RARE_LOOKS == 0:
            looked.resources = self._in_resources(job_id)
            asked = [Question(pid, identity, partial(self._variables, pid)) for pid in pids[:MAX_PROCESSES]]
            for answer in self._processes.ask(asked):
                if isinstance(answer, Exception):
                    raise answer
                for variable, text in () if answer is NO_ANSWER else answer:
                    texts = looked.variables.setdefault(variable, set())
                    if len(texts) < MAX_TOKENS:
                        texts.add(text)
        looked.reads += 1
        return looked

    def _in_cgroup(self, directory: str | None) -> Devices | None:
        if directory is None:
            return None
        try:
            major = read_number(self._host, "/proc/devices", rb"^\s*(\d{1,4}) nvidia-caps$")
            return parse_devices(self._host.read(f"{directory}/devices.list"), major)
        except (OSError, ValueError):
            return None

    def _in_resources(self, job_id: int) -> Devices | None:
        try:
            data = self._host.read_plain(f"{OAR_DIRECTORY}/{job_id}_resources", MAX_RESOURCES)
            name = self._host.read("/proc/sys/kernel/hostname")
        except OSError:
            return None
        return parse_resources(data.decode("utf-8", "replace"), name.decode("ascii", "replace").strip())

    def _open_to(self, allowed: Devices, gpus: Sequence[Gpu]) -> frozenset[str] | None:
        """Return the GPUs and instances accessible through these device files; None if unknown."""
        uuids = set()
        for gpu in whole(gpus):
            if gpu.minor is None:
                return None
            if gpu.minor not in allowed.gpus:
                continue
            if gpu.parent:
                needed = self._capabilities(gpu)
                if needed is None or not allowed.capabilities:
                    return None
                if not needed <= allowed.capabilities:
                    continue
            uuids.add(gpu.uuid)
        return frozenset(uuids)

    def _capabilities(self, gpu: Gpu) -> frozenset[int] | None:
        """Return the minor numbers of a MIG instance's capabilities. Source: /proc/driver/nvidia/capabilities."""
        if gpu.instance is None:
            return None
        one, two = gpu.instance
        base = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{one}"
        paths = (f"{base}/access", f"{base}/ci{two}/access")
        minors = [read_number(self._host, path, rb"^DeviceFileMinor:\s*(\d{1,6})\s*$") for path in paths]
        return frozenset([minor for minor in minors if minor is not None]) if None not in minors else None

    def _variables(self, pid: int) -> list[tuple[str, str]]:
        try:
            data = b"\0" + self._host.read_start(f"/proc/{pid}/environ", MAX_ENVIRONMENT)
        except OSError:  # ended meanwhile, or no permission
            return []
        found = []
        for variable in VARIABLES:  # searched, not split: a user may have set a quarter of a million of them
            rest = data.partition(f"\0{variable}=".encode())[2]
            text, whole_text, _ = rest[:MAX_TEXT].partition(b"\0")  # the first of a name counts, as for getenv(3)
            if whole_text:
                found.append((variable, text.decode("ascii", "replace")))
        return found
