"""Tables of NVIDIA GPUs: sums, a row for each GPU, and a row for each job on a GPU."""

from __future__ import annotations

from colmet.common.schema import Schema, counter, gauge, label
from colmet.common.tables import PART_FAILURES

MAX_JOBS = 256  # bytes of the ids of the jobs that hold or use a GPU
_ECC, _MEMORY, _RATES = "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"
_RUNNING = "nvmlDeviceGetComputeRunningProcesses"

# "Its GPUs": GPUs and MIG instances that the job holds, and those running one of its processes.
SCHEMA = Schema(
    "nvidiastats_default",
    "job",
    [
        gauge("power", "watts", "Power of the job's GPUs now, summed.", "nvmlDeviceGetPowerUsage"),
        gauge("temperature", "celsius", "The hottest of the job's GPUs.", "nvmlDeviceGetTemperature"),
        gauge(
            "utilization-gpu",
            "percent",
            "Share of the time with computation on a GPU, mean of the job's GPUs.",
            f"{_RATES} gpu",
        ),
        gauge(
            "utilization-memory",
            "percent",
            "Share of the time with reads or writes of a GPU's memory, mean of the job's GPUs.",
            f"{_RATES} memory",
        ),
        gauge("memory-total", "mbytes", "Memory of the job's GPUs, summed.", f"{_MEMORY} total"),
        gauge("memory-free", "mbytes", "Unused memory of the job's GPUs, summed.", f"{_MEMORY} free"),
        gauge("memory-used", "mbytes", "Used memory of the job's GPUs, summed over all users.", f"{_MEMORY} used"),
        gauge("gpus", "count", "The job's GPUs and MIG instances.", "the nvidia backend"),
        gauge("gpus_idle", "count", "GPUs without a process of the job.", "the nvidia backend"),
        gauge("gpus_shared", "count", "GPUs with processes of another job.", "the nvidia backend"),
    ],
)
GPUS = Schema(
    "nvidiagpus_default",
    "node",
    [
        label("uuid", 80, "UUID of the GPU or MIG instance.", "nvmlDeviceGetUUID"),
        label("name", 96, "Product, and profile of an instance.", "nvmlDeviceGetName"),
        label("pci", 32, "Bus id; of an instance, its GPU's.", "nvmlDeviceGetPciInfo busId"),
        label("parent", 80, "UUID of the GPU of an instance.", "nvmlDeviceGetMigDeviceHandleByIndex"),
        label("jobs", MAX_JOBS, "Ids of its jobs (allocated or using it), separated by commas.", "the nvidia backend"),
        gauge("index", "none", "nvidia-smi's number; an instance's within its GPU.", "nvmlDeviceGetHandleByIndex"),
        gauge("power", "watts", "Power now.", "nvmlDeviceGetPowerUsage", "f4"),
        gauge("power_limit", "watts", "Limit of its power.", "nvmlDeviceGetEnforcedPowerLimit", "f4"),
        counter("energy", "ujoules", "Energy since the driver was loaded.", "nvmlDeviceGetTotalEnergyConsumption"),
        gauge("utilization_gpu", "percent", "Share of the time with computation on it.", f"{_RATES} gpu"),
        gauge(
            "utilization_memory", "percent", "Share of the time with reads or writes of its memory.", f"{_RATES} memory"
        ),
        gauge("memory_total", "bytes", "Its memory.", f"{_MEMORY} total"),
        gauge("memory_used", "bytes", "Used memory.", f"{_MEMORY} used"),
        gauge("memory_free", "bytes", "Unused memory.", f"{_MEMORY} free"),
        gauge("memory_reserved", "bytes", "Memory reserved by the driver.", "nvmlDeviceGetMemoryInfo_v2 reserved"),
        gauge("temperature", "celsius", "Of the processor.", "nvmlDeviceGetTemperature"),
        gauge("temperature_memory", "celsius", "Of its memory.", "NVML_FI_DEV_MEMORY_TEMP"),
        gauge("fan", "percent", "Speed that its fan is to have, of the most.", "nvmlDeviceGetFanSpeed"),
        gauge("clock_graphics", "mhz", "Graphics clock now.", "nvmlDeviceGetClockInfo GRAPHICS"),
        gauge("clock_sm", "mhz", "Clock of the multiprocessors now.", "nvmlDeviceGetClockInfo SM"),
        gauge("clock_memory", "mhz", "Memory clock now.", "nvmlDeviceGetClockInfo MEM"),
        gauge("performance_state", "none", "0 (fastest) to 15.", "nvmlDeviceGetPerformanceState"),
        gauge(
            "clock_event_reasons",
            "none",
            "Why the clocks are not higher, a bit each: 1 idle, 2 clocks set, 4 power cap, 8 hardware slowdown, 16 "
            "sync boost, 32 software thermal, 64 hardware thermal, 128 power brake, 256 display.",
            "nvmlDeviceGetCurrentClocksEventReasons",
        ),
        counter("ecc_corrected_volatile", "count", "Corrected memory errors since the driver was loaded.", _ECC),
        counter("ecc_uncorrected_volatile", "count", "Uncorrected memory errors since the driver was loaded.", _ECC),
        counter("ecc_corrected_aggregate", "count", "Corrected memory errors in its life.", _ECC),
        counter("ecc_uncorrected_aggregate", "count", "Uncorrected memory errors in its life.", _ECC),
        gauge("pcie_tx", "kbytes", "Sent over PCIe a second, over 20 ms.", "nvmlDeviceGetPcieThroughput TX"),
        gauge("pcie_rx", "kbytes", "Received over PCIe a second, over 20 ms.", "nvmlDeviceGetPcieThroughput RX"),
        counter("pcie_replays", "count", "Repeated transfers over PCIe.", "nvmlDeviceGetPcieReplayCounter"),
        gauge("processes", "count", "Processes on it.", f"{_RUNNING} and others"),
        gauge("processes_no_job", "count", "Processes without a job.", "the nvidia backend"),
    ],
)
JOBS = Schema(
    "nvidiajobs_default",
    "job",
    [
        label("uuid", 80, "UUID of a GPU or MIG instance of the job (allocated or used).", "nvmlDeviceGetUUID"),
        label("held_by", 16, "Source of the allocation: devices, oar or environment.", "the nvidia backend"),
        gauge(
            "held",
            "count",
            "1 if allocated to the job, 0 if not; missing without a source.",
            "devices.list of the job's devices cgroup, /var/lib/oar/<job>_resources, /proc/<pid>/environ",
        ),
        gauge(
            "processes",
            "count",
            "The job's processes on it; 0 with held 1: it is held and not used.",
            f"{_RUNNING} and others",
        ),
        gauge("memory_used", "bytes", "Memory of these processes there.", f"{_RUNNING} usedGpuMemory"),
        gauge(
            "utilization_sm",
            "percent",
            "Share of the time with computation of these processes there since the last sample; missing without a "
            "sample of the driver.",
            "nvmlDeviceGetProcessUtilization smUtil",
            "f4",
        ),
    ],
)

NVIDIA_COUNTERS = (
    counter("gpus_lost", "count", "GPUs without an answer, once a sample.", "the nvidia backend"),
    PART_FAILURES,
    counter("jobs_unread", "count", "Failed reads of a job's processes.", "the nvidia backend"),
)
