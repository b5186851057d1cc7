"""GPUs allocated to or used by a job: duration, use, memory and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from colmet.common import measures
from colmet.common.growth import MOST_WATTS, grown
from colmet.common.lines import text_of
from colmet.common.measures import Measure
from colmet.jobs.figures import GpuUse, Number
from colmet.jobs.fold_nodes import LONGEST_PERIODS
from colmet.stored.gap_finder import cadence_s
from colmet.stored.job_rows import HostJob, JobRows, Outline, labels
from colmet.stored.series import NODE, RowQuery, Series

OF_JOB, OF_NODE, SUMMED = measures.GPUS_OF_JOBS, measures.GPUS, measures.JOB_GPUS
_OF_NODE = (measures.GPU_ENERGY, measures.GPU_POWER, measures.GPU_USE, measures.GPU_MEMORY_TOTAL)
NODE_COLUMNS = ("uuid", "name", "jobs", *measures.columns_of(_OF_NODE)[OF_NODE])
# Columns read from the job's own table, beside those of the fold.
COLUMNS: Mapping[str, tuple[str, ...]] = {OF_JOB: ("uuid", "processes", measures.GPU_OF_JOB_MEMORY.best.column)}


def gpus_of(
    rows: JobRows, hosts: Sequence[HostJob], tables: Mapping[str, Sequence[str]], span: Outline
) -> list[GpuUse]:
    """Return the job's GPUs on some hosts; `tables` are those of the nodes, with their columns."""
    holding = [stored for stored in hosts if OF_JOB in stored.tables]
    of_node: dict[str, Series] = {}
    wanted = [column for column in NODE_COLUMNS if column in tables.get(OF_NODE, ())]
    if holding and "uuid" in wanted:
        read = rows.read(RowQuery(NODE, OF_NODE, wanted, span.start, span.last, [stored.host for stored in holding]))
        of_node = {series.host: series for series in read}
    found: list[GpuUse] = []
    for stored in hosts:
        if OF_JOB in stored.tables:
            series = stored.tables[OF_JOB]
            uuids = np.unique(labels(series, "uuid")).tolist()
            found += [_gpu(stored, uuid, series, of_node.get(stored.host)) for uuid in uuids]
        elif SUMMED in stored.tables:
            found.append(_summed(stored, stored.tables[SUMMED]))
    return found


def _gpu(stored: HostJob, uuid: bytes, series: Series, of_node: Series | None) -> GpuUse:
    rows = labels(series, "uuid") == uuid
    times, processes, memory = (
        series.times[rows],
        series.values("processes")[rows],
        _values(series, measures.GPU_OF_JOB_MEMORY)[rows],
    )
    steps_s = _steps_s(times)
    gpu = GpuUse(
        stored.host,
        text_of(uuid),
        held_s=float(steps_s.sum()),
        idle_s=None if np.isnan(processes).all() else float(steps_s[processes == 0].sum()),
        memory_peak_bytes=_most(memory),
    )
    if of_node is None:
        return gpu
    its = labels(of_node, "uuid") == uuid
    held = its & np.isin(of_node.times, times)
    names = labels(of_node, "name")[its].tolist()
    return replace(
        gpu,
        name=text_of(names[-1]) if len(names) else "",
        use_ratio=_mean(_values(of_node, measures.GPU_USE)[held]),
        memory_bytes=_most(_values(of_node, measures.GPU_MEMORY_TOTAL)[its]),
        energy_joules=_energy(of_node, its, times),
    )


def _energy(of_node: Series, its: npt.NDArray[np.bool_], held: npt.NDArray[np.int64]) -> Number:
    """Return the energy of a GPU between samples of its allocation to the job, divided by the jobs sharing it."""
    at, energy, watts = (
        of_node.times[its],
        _values(of_node, measures.GPU_ENERGY)[its],
        _values(of_node, measures.GPU_POWER)[its],
    )
    order = np.lexsort((energy, at))  # stores need not keep the order of rows of one second
    at, energy, watts = at[order], energy[order], watts[order]
    sharing = np.char.count(labels(of_node, "jobs")[its][order], b",") + 1.0
    seconds = at.astype(np.float64)
    joules = grown(seconds, energy, MOST_WATTS)
    joules = np.where(np.isnan(joules), power_joules(seconds, watts), joules)
    ours = np.isin(at[1:], held) & ~np.isnan(joules)
    return float((joules / sharing[1:])[ours].sum()) if ours.any() else None


def _summed(stored: HostJob, series: Series) -> GpuUse:
    """Return all GPUs of a job as one, for rows without the GPUs' identity."""
    steps_s = _steps_s(series.times)
    gpus, idle = _values(series, measures.JOB_GPU_COUNT), _values(series, measures.JOB_GPU_IDLE)
    joules = power_joules(series.times.astype(np.float64), _values(series, measures.JOB_GPU_POWER))
    return GpuUse(
        stored.host,
        "",
        held_s=float(steps_s.sum()),
        idle_s=None if np.isnan(idle).all() else float(steps_s[(idle > 0) & (idle == gpus)].sum()),
        use_ratio=_mean(_values(series, measures.JOB_GPU_USE)),
        memory_peak_bytes=_most(_values(series, measures.JOB_GPU_MEMORY)),
        memory_bytes=_most(_values(series, measures.JOB_GPU_MEMORY_TOTAL)),
        energy_joules=float(np.nansum(joules)) if not np.isnan(joules).all() else None,
    )


def _steps_s(times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the duration of each sample: since the sample before, at most `LONGEST_PERIODS` periods."""
    period_s = cadence_s(times, 0)
    first_s = min(period_s, float(times[1] - times[0])) if len(times) > 1 else period_s  # shorter in thinned rows
    steps_s = np.diff(times.astype(np.float64), prepend=times[0] - first_s)
    return np.minimum(steps_s, LONGEST_PERIODS * (period_s or np.inf))


def power_joules(times: npt.NDArray[np.float64], watts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the energy of each step between samples of power, from the mean of both; NaN if unknown, as in a gap."""
    steps_s = np.diff(times)
    joules = (watts[:-1] + watts[1:]) / 2 * steps_s
    if len(steps_s):
        joules[(steps_s <= 0) | (steps_s > LONGEST_PERIODS * max(1.0, float(np.median(steps_s))))] = np.nan
    return np.asarray(joules)


def _values(series: Series, measure: Measure) -> npt.NDArray[np.float64]:
    return series.values(measure.best.column) * measure.best.factor


def _most(values: npt.NDArray[np.float64]) -> Number:
    return None if np.isnan(values).all() else float(np.nanmax(values))


def _mean(values: npt.NDArray[np.float64]) -> Number:
    return None if np.isnan(values).all() else float(np.nanmean(values))
