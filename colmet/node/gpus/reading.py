"""One reading of a GPU, whoever it comes from."""

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
        memory: bytes of the GPU's memory that it has; None where the driver does not say.
        sm_percent: share of the time since the last reading in which its kernels ran; None where it is not told.
    """

    pid: int
    memory: int | None = None
    sm_percent: float | None = None


@dataclass
class Gpu:
    """A GPU, or an instance of one that is divided by MIG, as it was a moment ago.

    Attributes:
        uuid: ``GPU-...`` or ``MIG-...``.
        name: of the product.
        pci: bus id; of an instance, its GPU's.
        index: nvidia-smi's number of it; of an instance, its number within its GPU.
        minor: the N of ``/dev/nvidiaN``; of an instance, its GPU's; None where it is not known.
        parent: uuid of the GPU that an instance is part of, "" for a whole GPU.
        instance: numbers of an instance's GPU instance and compute instance.
        values: columns of ``nvidiagpus_default``; what is not supported is left out or None.
        processes: those on it now; None where they are not known.
        lost: it does not answer; all that is known is from before.
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
    """Where readings come from.

    Attributes:
        failures: answers that failed for another reason than that there is no such value.
        lost: GPUs that did not answer, once a reading.
        programs: that are asked, or have been.
    """

    failures: int = 0
    lost: int = 0
    programs: tuple[Command, ...] = ()

    @abstractmethod
    def open(self) -> None:
        """Get ready.

        Raises:
            BackendUnavailable: there is no GPU, or no way to it of this kind.
        """

    @abstractmethod
    def read(self) -> list[Gpu]:
        """All GPUs of the node, each before its instances.

        Raises:
            BackendUnavailable: the driver has gone.
            CommandFailed: a program failed this time.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; also twice."""


def whole(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Those that programs run on: instances, and GPUs that have none."""
    divided = {gpu.parent for gpu in gpus if gpu.parent}
    return [gpu for gpu in gpus if gpu.uuid not in divided]
