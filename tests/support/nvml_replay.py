"""A stand-in for the module pynvml that answers what was recorded (tests/support/record_nvml.py), or written so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

DATA = Path(__file__).parents[1] / "data/nvidia"
LOST, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, UNINITIALIZED, NOT_LOADED = 15, 3, 6, 13, 1, 9


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


class NVMLLibraryMismatchError(Exception):
    pass


def structured(answer):
    if isinstance(answer, dict):
        return SimpleNamespace(**{name: structured(value) for name, value in answer.items()})
    return [structured(one) for one in answer] if isinstance(answer, list) else answer


class Device:
    """Handle and answers in one."""

    def __init__(self, recorded):
        self.answers = dict(recorded["answers"])
        self.instances = {int(n): Device(one) for n, one in recorded.get("instances", {}).items()}
        self.error = recorded.get("error")

    @property
    def uuid(self):
        return self.answers["nvmlDeviceGetUUID"]

    def runs(self, *processes, kind="Compute"):
        """Have processes on it: (pid, bytes)."""
        listed = [{"pid": pid, "usedGpuMemory": used} for pid, used in processes]
        self.answers[f"nvmlDeviceGet{kind}RunningProcesses_v3"] = listed


class Replay:
    """Give it to `sys.modules` as pynvml.

    Attributes:
        devices: as recorded; tests change them.
        started: how often it was initialised; `stopped`: how often shut down.
        broken: an error number that every call raises.
        absent: calls that this version of the module does not have.
        asked: all calls of GPUs, as the recorder writes them.
    """

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError

    def __init__(self, name):
        recorded = json.loads((DATA / f"{name}.json").read_text())
        self.devices = [Device(one) for one in recorded["devices"]]
        self.started = self.stopped = 0
        self.broken = None
        self.absent = set()
        self.asked = set()

    @property
    def is_on(self):
        return self.started > self.stopped

    def nvmlInit(self):  # noqa: N802
        self._check()
        self.started += 1

    def nvmlShutdown(self):  # noqa: N802
        assert self.is_on
        self.stopped += 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        self._check(self.is_on)
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        self._check(self.is_on)
        device = self.devices[index]
        self._check(error=device.error)
        return device

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):  # noqa: N802
        self._check(self.is_on)
        if index not in device.instances:
            raise NVMLError(NOT_FOUND)
        return device.instances[index]

    def __getattr__(self, name):
        if not name.startswith("nvmlDeviceGet") or name in self.absent:
            raise AttributeError(name)

        def call(device, *arguments):
            self._check(self.is_on, device.error)
            key = f"{name}({', '.join(map(str, arguments))})" if arguments else name
            if name == "nvmlDeviceGetProcessUtilization":
                key = f"{name}(0)"
            self.asked.add(key)
            answer = device.answers.get(key, {"error": NOT_SUPPORTED})
            if isinstance(answer, dict) and "error" in answer:
                if answer["error"] == "mismatch":
                    raise NVMLLibraryMismatchError
                raise NVMLError(answer["error"])
            return structured(answer)

        return call

    def _check(self, is_on=True, error=None):
        if self.broken is not None or error is not None:
            raise NVMLError(error if self.broken is None else self.broken)
        if not is_on:
            raise NVMLError(UNINITIALIZED)
