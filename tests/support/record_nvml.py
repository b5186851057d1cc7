"""Records what NVML answers on this machine, for tests/support/nvml_replay.py; needs nvidia-ml-py (pynvml) alone.

usage: python tests/support/record_nvml.py OUT.json
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pynvml

# Every call that colmet.node.gpus.nvml makes of a GPU, with its arguments. A test fails when one is missing.
CALLS = [
    ("nvmlDeviceGetUUID",),
    ("nvmlDeviceGetName",),
    ("nvmlDeviceGetPciInfo",),
    ("nvmlDeviceGetMinorNumber",),
    ("nvmlDeviceGetPowerUsage",),
    ("nvmlDeviceGetEnforcedPowerLimit",),
    ("nvmlDeviceGetTotalEnergyConsumption",),
    ("nvmlDeviceGetUtilizationRates",),
    ("nvmlDeviceGetMemoryInfo",),
    ("nvmlDeviceGetMemoryInfo", 0x2000028),
    ("nvmlDeviceGetTemperature", 0),
    ("nvmlDeviceGetFieldValues", [82]),
    ("nvmlDeviceGetFanSpeed",),
    *[("nvmlDeviceGetClockInfo", kind) for kind in (0, 1, 2)],
    ("nvmlDeviceGetPerformanceState",),
    ("nvmlDeviceGetCurrentClocksEventReasons",),
    ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    *[("nvmlDeviceGetTotalEccErrors", kind, counter) for kind in (0, 1) for counter in (0, 1)],
    *[("nvmlDeviceGetPcieThroughput", counter) for counter in (0, 1)],
    ("nvmlDeviceGetPcieReplayCounter",),
    *[
        (f"nvmlDeviceGet{kind}RunningProcesses{version}",)
        for kind in ("Compute", "Graphics", "MPSCompute")
        for version in ("_v3", "_v2", "")
    ],
    ("nvmlDeviceGetProcessUtilization", 0),
    ("nvmlDeviceGetMigMode",),
    ("nvmlDeviceGetMaxMigDeviceCount",),
    ("nvmlDeviceGetGpuInstanceId",),
    ("nvmlDeviceGetComputeInstanceId",),
]


def key_of(name, arguments):
    """How a call is written in the file."""
    return f"{name}({', '.join(map(str, arguments))})" if arguments else name


def plain(answer):
    """An answer as JSON has it: a structure becomes an object of its fields."""
    if isinstance(answer, bytes):
        return answer.decode("ascii", "replace")
    if isinstance(answer, (int, float, str, type(None))):
        return answer
    if isinstance(answer, ctypes.Union):  # of a field value, the one whole number that the tests know
        return {"uiVal": answer.uiVal}
    if isinstance(answer, ctypes.Structure):
        return {field[0]: plain(getattr(answer, field[0])) for field in answer._fields_}
    if hasattr(answer, "__dict__"):
        return {name: plain(value) for name, value in vars(answer).items()}
    return [plain(one) for one in answer]


def ask(function, *arguments):
    try:
        return plain(function(*arguments))
    except pynvml.NVMLError as err:
        return {"error": err.value}
    except pynvml.NVMLLibraryMismatchError:
        return {"error": "mismatch"}


def answers(handle):
    return {
        key_of(name, arguments): ask(getattr(pynvml, name), handle, *arguments)
        for name, *arguments in CALLS
        if hasattr(pynvml, name)
    }


def device(index):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    found = {"answers": answers(handle), "instances": {}}
    most = found["answers"].get("nvmlDeviceGetMaxMigDeviceCount", 0)
    for n in range(most if isinstance(most, int) else 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, n)
        except pynvml.NVMLError:
            continue
        found["instances"][str(n)] = {"answers": answers(instance)}
    return found


def printed(*arguments):
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=False)
    return {"status": done.returncode, "out": done.stdout}


def main(path):
    pynvml.nvmlInit()
    recorded = {
        "about": f"recorded, driver {plain(pynvml.nvmlSystemGetDriverVersion())}",
        "devices": [device(n) for n in range(pynvml.nvmlDeviceGetCount())],
        "nvidia-smi": printed(),
    }
    pynvml.nvmlShutdown()
    with open(path, "w") as file:
        json.dump(recorded, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
