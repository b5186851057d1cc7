"""Supported batch systems, by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

from colmet.batch.model import BatchSystem
from colmet.common.errors import ConfigError

# name -> module and class; imported on first use
SYSTEMS = {
    "condor": ("colmet.batch.condor", "HTCondor"),
    "gridengine": ("colmet.batch.gridengine", "GridEngine"),
    "oar": ("colmet.batch.oar", "OAR"),
    "slurm": ("colmet.batch.slurm", "Slurm"),
}


def find_systems(names: Iterable[str], condor_queues: Sequence[tuple[str, str]] = ()) -> list[BatchSystem]:
    """Return the batch systems of these names, each once, in that order; raise ConfigError for an unknown one.

    `condor_queues` are names and constraints of HTCondor's queues.
    """
    found: list[BatchSystem] = []
    for name in dict.fromkeys(names):
        if name not in SYSTEMS:
            raise ConfigError(f"batch system {name!r} is not known; there are {', '.join(sorted(SYSTEMS))}")
        module, of = SYSTEMS[name]
        system = getattr(importlib.import_module(module), of)
        found.append(system(condor_queues) if name == "condor" else system())
    return found
