"""NVIDIA GPUs: one reading of them, from NVML or nvidia-smi, and their allocation to jobs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from colmet.common.host.command import Command
from colmet.common.host.host import Host
from colmet.common.schema import Value


class Process(NamedTuple):
    """A process on a GPU."""

    pid: int  # as the node numbers it
    memory: int | None = None  # its bytes of the GPU's memory; None if the driver does not report it
    sm_percent: float | None = None  # share of the time since the last reading with its kernels running


@dataclass
class Gpu:
    """A GPU or a MIG instance at the time of a reading."""

    uuid: str  # GPU-... or MIG-...
    name: str = ""  # of the product
    pci: str = ""  # bus id; of an instance, its GPU's
    index: int | None = None  # its number in nvidia-smi; of an instance, its number within its GPU
    minor: int | None = None  # the N of /dev/nvidiaN; of an instance, its GPU's; None if unknown
    parent: str = ""  # uuid of an instance's GPU, "" for a whole GPU
    instance: tuple[int, int] | None = None  # numbers of an instance's GPU instance and compute instance
    values: dict[str, Value] = field(default_factory=dict)  # columns of nvidiagpus_default; some missing or None
    processes: Sequence[Process] | None = None  # on it; None if unknown
    lost: bool = False  # whether it does not answer; all other attributes are then of an earlier reading


class GpuReader(ABC):
    """A source of readings of the node's GPUs."""

    failures: int = 0  # failed queries of existing values
    lost: int = 0  # GPUs that did not answer, counted at each reading
    programs: tuple[Command, ...] = ()  # external programs used so far

    @abstractmethod
    def open(self) -> None:
        """Prepare to read; BackendUnavailable without a GPU, or if unreadable in this way."""

    @abstractmethod
    def read(self) -> list[Gpu]:
        """Return all GPUs of the node, each before its instances; BackendUnavailable if the driver has gone."""

    def close(self) -> None:  # noqa: B027 - nothing may be open between two readings
        """Release everything; can be called twice."""


def read_number(host: Host, path: str, form: bytes) -> int | None:
    """Return the number in the first line of this form in a file; None without any."""
    try:
        match = re.search(form, host.read(path), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def whole(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs usable by programs: instances, and GPUs without any."""
    divided = {gpu.parent for gpu in gpus if gpu.parent}
    return [gpu for gpu in gpus if gpu.uuid not in divided]
