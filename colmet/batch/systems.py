"""Supported batch systems, by name."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterable, Sequence

from colmet.batch.model import BatchSystem
from colmet.batch.records import RecordSource
from colmet.common.errors import ConfigError

# name -> module and class; imported on first use
SYSTEMS = {
    "condor": ("colmet.batch.condor", "HTCondor"),
    "gridengine": ("colmet.batch.gridengine", "GridEngine"),
    "oar": ("colmet.batch.oar", "OAR"),
    "slurm": ("colmet.batch.slurm", "Slurm"),
}
# likewise, for what is known of single jobs
RECORDS = {
    "gridengine": ("colmet.batch.gridengine_records", "GridEngineRecords"),
    "oar": ("colmet.batch.oar_records", "OarRecords"),
    "slurm": ("colmet.batch.slurm_records", "SlurmRecords"),
}
COMMANDS = {"oar": "oarstat", "slurm": "squeue"}  # without which records cannot be had


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


def find_record_sources(text: str) -> list[RecordSource]:
    """Return the sources of records of a list such as `slurm,oar=http://server/oarapi`; empty for `none`.

    `auto` are those whose commands or files are here. Behind a name: the URL of OAR's REST interface, the path of Grid
    Engine's accounts.

    Raises:
        ConfigError: an unknown name, or an unusable URL.
    """
    found: dict[str, RecordSource] = {}
    for word in dict.fromkeys(part.strip() for part in text.split(",")):
        name, _, value = word.partition("=")
        if word == "auto":
            found.update({one: _record_source(one, "") for one in RECORDS if one not in found and _is_here(one)})
        elif name in RECORDS and not (name == "slurm" and value):
            found[name] = _record_source(name, value)
        elif word not in ("", "none"):
            raise ConfigError(f"batch system {word!r:.100} is not known; there are auto, none, {', '.join(RECORDS)}")
    return list(found.values())


def _record_source(name: str, value: str) -> RecordSource:
    module, of = RECORDS[name]
    if name == "oar" and value:
        of = "OarRestRecords"
    source = getattr(importlib.import_module(module), of)
    made: RecordSource = source(value) if value else source()
    return made


def _is_here(name: str) -> bool:
    """Return whether this machine can ask a batch system."""
    if name == "gridengine":
        path = importlib.import_module(RECORDS[name][0]).accounts_path(os.environ)
        return os.path.isabs(path) and os.path.exists(path)
    return shutil.which(COMMANDS[name]) is not None
