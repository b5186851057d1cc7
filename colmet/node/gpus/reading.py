"""One reading of a GPU, from NVML or nvidia-smi."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from colmet.common.schema import Value
from colmet.node.system.command import Command


class Process(NamedTuple):
    """A process on a GPU.

    Attributes:
        pid: as the node numbers it.
        memory: its bytes of the GPU's memory; None if the driver does not report it.
        sm_percent: share of the time since the last reading with its kernels running; None if unknown.
    """

    pid: int
    memory: int | None = None
    sm_percent: float | None = None


@dataclass
class Gpu:
    """A GPU or a MIG instance at the time of a reading.

    Attributes:
        uuid: ``GPU-...`` or ``MIG-...``.
        name: of the product.
        pci: bus id; of an instance, its GPU's.
        index: its number in nvidia-smi; of an instance, its number within its GPU.
        minor: the N of ``/dev/nvidiaN``; of an instance, its GPU's; None if unknown.
        parent: uuid of an instance's GPU, "" for a whole GPU.
        instance: numbers of an instance's GPU instance and compute instance.
        values: columns of ``nvidiagpus_default``; unsupported ones are missing or None.
        processes: those on it; None if unknown.
        lost: whether it does not answer; all other attributes are then of an earlier reading.
    """

    uuid: str
    name: str = ""
    pci: str = ""
    index: int | None = None
    minor: int | None = None
    parent: str = ""
    instance: tuple[int, int] | None = None
    values: dict[str, Value] = field(default_factory=dict)
    processes: Sequence[Process] | None = None
    lost: bool = False


class GpuReader(ABC):
    """A source of readings of the node's GPUs.

    Attributes:
        failures: number of failed queries of existing values.
        lost: number of GPUs that did not answer, counted at each reading.
        programs: the external programs used so far.
    """

    failures: int = 0
    lost: int = 0
    programs: tuple[Command, ...] = ()

    @abstractmethod
    def open(self) -> None:
        """Prepare to read.

        Raises:
            BackendUnavailable: no GPU, or not readable in this way.
        """

    @abstractmethod
    def read(self) -> list[Gpu]:
        """Return all GPUs of the node, each before its instances.

        Raises:
            BackendUnavailable: the driver has gone.
            CommandFailed: a program failed this time.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; can be called twice."""


def whole(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs usable by programs: instances, and GPUs without any."""
    divided = {gpu.parent for gpu in gpus if gpu.parent}
    return [gpu for gpu in gpus if gpu.uuid not in divided]
