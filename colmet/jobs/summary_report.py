"""The report of a job from its summaries, for jobs whose rows are gone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from colmet.common.lines import JobCompleteness, Line
from colmet.jobs import figures, footprint
from colmet.jobs.advice import BECAUSE, withheld
from colmet.jobs.columns import ADVICE, BATCH, ENDED, FOOTPRINT, RUNNING, Summary, whole_of
from colmet.jobs.figures import Number, Report
from colmet.jobs.footprint import Footprint

_FULLNESS = ("memory_ratio", "memory_peak")
_CURVES = (("cpu", "CPU", "cores"), ("memory", "Memory", "bytes"), ("gpu", "GPU", "percent"))
_BOUNDS = {"cpu": "cpus", "memory": "memory_limit"}  # of a host
METHOD = "from sample to sample, each node's is shared by CPU time among its jobs and what no job used"


def report_of(
    job: Summary, hosts: Sequence[Summary], curves: Sequence[tuple[Summary, Footprint]] | None = None
) -> Report:
    """Return the report of a job, without what only its rows show; the advice is the stored one.

    It has curves if the hosts have footprints, or these are given in `curves`, decoded.
    """
    on_hosts = tuple([_host(one) for one in sorted(hosts, key=lambda one: str(one["host"]))])
    start = whole_of(job.get("start"))
    end = whole_of(job.get("last")) or max(start, whole_of(job.get("ended")))  # without rows: by the batch system
    # by the batch system, which may know it before the nodes
    is_over = job.get("state") not in (None, "", RUNNING, ENDED)
    runs = not is_over and bool(job.get("is_running") or (job.get("last") is None and job.get("state") == RUNNING))
    peaks = [one for one in hosts if _number(one, "memory_peak") is not None]
    # with the CPU time of some hosts only, a part would be taken for the whole
    is_known = all(_number(one, "cpu_s") is not None for one in hosts) or _number(job, "cpu_s") is None
    fullest = max(peaks, key=lambda one: [_number(one, name) or 0.0 for name in _FULLNESS], default=None)
    of_nodes, own = _number(job, "node_joules"), _number(job, "joules")
    full: Summary = {} if fullest is None else fullest
    report = Report(
        job=whole_of(job.get("job")),
        user=str(job.get("owner") or job.get("user") or ""),
        state="running" if runs else "ended",
        start=start,
        end=end,
        wall_s=float(end - start),
        since=None,
        until=None,
        samples=whole_of(job.get("samples")),
        period_s=None,
        cpu=figures.Cpu(
            **_numbers(job, "user_s system_s unattributed_s throttled_s", used_s="cpu_s"),
            **(_numbers(job, "cpus", available_s="core_s") if is_known else {}),
        ),
        time=figures.Whereabouts(
            **_numbers(job, running_s="cpu_s", waiting_cpu_s="wait_cpu_s", block_io_s="wait_io_s"),
            **_numbers(job, swap_s="wait_swap_s", reclaim_s="wait_reclaim_s"),
        ),
        memory=figures.MemoryUse(
            host=str(full.get("host", "")),
            **_numbers(full, peak_bytes="memory_peak", limit_bytes="memory_limit", anon_peak_bytes="memory_anon_peak"),
            **_numbers(job, "oom_kills", limit_hits="memory_limit_hits", major_faults="major_faults"),
            **_numbers(job, total_peak_bytes="memory_peak", swap_peak_bytes="swap_peak"),
            refaults=_added(_number(job, "refaults_anon"), _number(job, "refaults_file")),
            note="" if fullest is not None else "its memory was not measured",
        ),
        io=figures.InputOutput(
            **_numbers(job, "read_bytes written_bytes read_ops write_ops"),
            **_numbers(job, asked_read_bytes="calls_read_bytes", asked_written_bytes="calls_written_bytes"),
            read_calls=_calls(_number(job, "read_calls"), _number(job, "calls_read_bytes")),
            write_calls=_calls(_number(job, "write_calls"), _number(job, "calls_written_bytes")),
        ),
        nodes=figures.Shared(
            **_numbers(job, "network_sent_bytes network_received_bytes lustre_read_bytes lustre_written_bytes")
        ),
        gpus=tuple([_gpus(one) for one in hosts if _number(one, "gpus")]),
        energy=figures.Energy(
            **_numbers(job, "gpu_joules", job_joules="joules", nodes_joules="node_joules"),
            nobody_joules=None if of_nodes is None or own is None else max(0.0, of_nodes - own),
            source=str(job.get("energy_source") or ""),
            method=METHOD if job.get("energy_source") else "",
            covered_ratio=figures.share(_number(job, "energy_s"), _number(job, "host_s")),
        ),
        completeness=JobCompleteness(whole_of(job.get("rows")), whole_of(job.get("missing")), "steps"),
        hosts=on_hosts,
        advice=stored_advice(job),
        curves=_curves(footprints_of(hosts) if curves is None else curves),
        **_numbers(job, "switches involuntary_switches tasks_ended"),
        tasks_peak=max([one.tasks_peak for one in on_hosts if one.tasks_peak is not None], default=None),
        batch=batch_of(job),
        source="archive",
    )
    if job.get(ADVICE.name):
        return report
    why = "no node measured the job" if job.get("last") is None else withheld(report) or "its summary has none"
    return replace(report, advice_withheld=why)


def batch_of(job: Summary) -> figures.BatchFacts | None:
    """Return what the batch system knows of a job; None if it knows nothing."""
    if not any(job.get(column.name) not in (None, "") for column in BATCH if column.name != "state"):
        return None
    values: dict[str, Any] = {}
    for field in fields(figures.BatchFacts):
        name = field.name.replace("_bytes", "")
        number = None if _number(job, name) is None else whole_of(job[name])
        values[field.name] = str(job.get(name) or "") if field.default == "" else number
    return figures.BatchFacts(**values)


def stored_advice(job: Summary) -> tuple[figures.Advice, ...]:
    """Return the advice in a summary."""
    text = job.get(ADVICE.name)
    try:
        rules = json.loads(text) if isinstance(text, str) else []
        return tuple(
            [figures.Advice(str(one["rule"]), str(one["text"]), BECAUSE.get(one["rule"], "")) for one in rules]
        )
    except (ValueError, TypeError, KeyError):
        return ()


def _number(summary: Summary, name: str) -> Number:
    value = summary.get(name)
    return value if isinstance(value, (int, float)) else None


def _numbers(summary: Summary, same: str = "", **columns: str) -> dict[str, Any]:
    """Return values by the names of fields: those of columns of the same names, and of other columns."""
    return {field: _number(summary, name) for field, name in {**{n: n for n in same.split()}, **columns}.items()}


def _added(*values: Number) -> Number:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _calls(number: Number, moved: Number) -> Number:
    """Return the number of calls; None if there are none though they have moved bytes."""
    return number or (None if moved else number)


def _host(one: Summary) -> figures.HostFigures:
    return figures.HostFigures(
        host=str(one["host"]),
        first=whole_of(one.get("start")),
        last=whole_of(one.get("last")),
        samples=whole_of(one.get("samples")),
        wall_s=float(whole_of(one.get("last")) - whole_of(one.get("start"))),
        **_numbers(one, "cpus read_bytes written_bytes tasks_peak", cpu_used_s="cpu_s", energy_joules="joules"),
        **_numbers(one, memory_peak_bytes="memory_peak", memory_limit_bytes="memory_limit"),
        **_numbers(one, memory_anon_peak_bytes="memory_anon_peak"),
    )


def _gpus(one: Summary) -> figures.GpuUse:
    """Return all GPUs of a job on a host as one."""
    gpus = _number(one, "gpus") or 1
    held, idle, busy = [_number(one, name) for name in ("gpu_s", "gpu_idle_s", "gpu_busy_s")]
    return figures.GpuUse(
        *(str(one["host"]), ""),
        held_s=None if held is None else held / gpus,
        idle_s=None if idle is None else idle / gpus,
        use_ratio=figures.share(busy, held),
        **_numbers(one, memory_peak_bytes="gpu_memory_peak", memory_bytes="gpu_memory", energy_joules="gpu_joules"),
    )


def footprints_of(hosts: Sequence[Summary]) -> list[tuple[Summary, Footprint]]:
    """Return the hosts with a footprint, and it; without those of a later version, or damaged."""
    found = []
    for one in hosts:
        packed = one.get(FOOTPRINT.name)
        with contextlib.suppress(ValueError):
            if isinstance(packed, bytes):
                found.append((one, footprint.decode(packed)))
    return found


def _curves(footprints: Sequence[tuple[Summary, Footprint]]) -> tuple[figures.Curve, ...]:
    """Return the curves of the footprints."""
    found = []
    for name, title, unit in _CURVES:
        lines = [_line(one, curves, name) for one, curves in footprints if name in curves.curves]
        bounds = {_number(one, _BOUNDS[name]) if name in _BOUNDS else 100.0 for one, _ in footprints}
        if lines:
            found.append(figures.Curve(name, title, unit, tuple(lines), bounds.pop() if len(bounds) == 1 else None))
    return tuple(found)


def _line(one: Summary, curves: Footprint, name: str) -> Line:
    values = curves.curves[name]
    ends = whole_of(one.get("start")) + curves.step_s * (1.0 + np.arange(len(values)))
    if name == "gpu":  # percent of all GPUs of the job on the host
        values = values * 100 / (_number(one, "gpus") or 1)
    return Line(str(one["host"]), "", np.minimum(ends, float(whole_of(one.get("last")))), values)
