"""Location and version check of the C libraries of backends."""

from __future__ import annotations

import logging
import os
from ctypes import CDLL
from pathlib import Path

from colmet.common.errors import BackendUnavailable

log = logging.getLogger(__name__)

_refused: set[str] = set()  # logged once, however often a backend is retried
HERE = str(Path(__file__).resolve().parents[1] / "backends")


def load(folder: str, abi: int, variable: str) -> CDLL:
    """Load ``lib_rapl.so`` of the folder ``lib_rapl`` beside the backends; BackendUnavailable says how to build it.

    Its function ``lib_rapl_abi`` returns its ABI number. A variable of the environment may name another file, or a
    folder with such a file. One of another ABI is refused with a warning, and the built one is used.
    """
    built = os.path.join(HERE, folder, f"{folder}.so")
    named = os.environ.get(variable, "")
    if named:
        path = os.path.join(named, f"{folder}.so") if os.path.isdir(named) else named
        try:
            return _open(path, folder, abi)
        except OSError as err:
            if path not in _refused:
                _refused.add(path)
                log.warning("%s=%s is refused, %s is used: %s", variable, named, built, err)
    try:
        return _open(built, folder, abi)
    except OSError as err:
        raise BackendUnavailable(f"{err}; `make -C {os.path.dirname(built)}` builds it (it needs gcc)") from err


def _open(path: str, folder: str, abi: int) -> CDLL:
    library = CDLL(path, use_errno=True)
    try:
        spoken = getattr(library, f"{folder}_abi")()
    except AttributeError:
        raise OSError(f"{path} is not the {folder} of this Colmet (it has no {folder}_abi)") from None
    if spoken != abi:
        raise OSError(f"{path} speaks ABI {spoken}, and this Colmet speaks {abi}")
    return library
