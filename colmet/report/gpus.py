"""GPUs allocated to or used by a job: duration, use, memory and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from colmet.common import measures
from colmet.common.growth import MOST_WATTS, grown
from colmet.common.measures import Measure
from colmet.report.energy import LONGEST_PERIODS, power_joules
from colmet.report.model import GpuUse, Number
from colmet.stored.gap_finder import cadence_s
from colmet.stored.series import NODE, RowQuery, Series
from colmet.stored.stays import JobRows, Outline, Stay, labels, text_of

OF_JOB, OF_NODE, SUMMED = measures.GPUS_OF_JOBS, measures.GPUS, measures.JOB_GPUS
_OF_NODE = (measures.GPU_ENERGY, measures.GPU_POWER, measures.GPU_USE, measures.GPU_MEMORY_TOTAL)
_OF_SUM = (
    *(measures.JOB_GPU_POWER, measures.JOB_GPU_USE, measures.JOB_GPU_MEMORY_TOTAL, measures.JOB_GPU_MEMORY),
    *(measures.JOB_GPU_IDLE, measures.JOB_GPU_COUNT),
)
NODE_COLUMNS = ("uuid", "name", "jobs", *measures.columns_of(_OF_NODE)[OF_NODE])
# Columns read from the job's own tables.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    OF_JOB: ("uuid", "processes", measures.GPU_OF_JOB_MEMORY.best.column),
    **measures.columns_of(_OF_SUM),
}


def gpus_of(rows: JobRows, stays: Sequence[Stay], tables: Mapping[str, Sequence[str]], span: Outline) -> list[GpuUse]:
    """Return the job's GPUs on some hosts; `tables` are those of the nodes, with their columns."""
    holding = [stay for stay in stays if OF_JOB in stay.tables]
    of_node: dict[str, Series] = {}
    wanted = [column for column in NODE_COLUMNS if column in tables.get(OF_NODE, ())]
    if holding and "uuid" in wanted:
        read = rows.read(RowQuery(NODE, OF_NODE, wanted, span.start, span.last, [stay.host for stay in holding]))
        of_node = {series.host: series for series in read}
    found: list[GpuUse] = []
    for stay in stays:
        if OF_JOB in stay.tables:
            series = stay.tables[OF_JOB]
            uuids = np.unique(labels(series, "uuid")).tolist()
            found += [_gpu(stay, uuid, series, of_node.get(stay.host)) for uuid in uuids]
        elif SUMMED in stay.tables:
            found.append(_summed(stay, stay.tables[SUMMED]))
    return found


def _gpu(stay: Stay, uuid: bytes, series: Series, of_node: Series | None) -> GpuUse:
    rows = labels(series, "uuid") == uuid
    times, processes, memory = (
        series.times[rows],
        series.values("processes")[rows],
        _values(series, measures.GPU_OF_JOB_MEMORY)[rows],
    )
    steps_s = _steps_s(times)
    gpu = GpuUse(
        stay.host,
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


def _summed(stay: Stay, series: Series) -> GpuUse:
    """Return all GPUs of a job as one, for rows without the GPUs' identity."""
    steps_s = _steps_s(series.times)
    gpus, idle = _values(series, measures.JOB_GPU_COUNT), _values(series, measures.JOB_GPU_IDLE)
    joules = power_joules(series.times.astype(np.float64), _values(series, measures.JOB_GPU_POWER))
    return GpuUse(
        stay.host,
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


def _values(series: Series, measure: Measure) -> npt.NDArray[np.float64]:
    return series.values(measure.best.column) * measure.best.factor


def _most(values: npt.NDArray[np.float64]) -> Number:
    return None if np.isnan(values).all() else float(np.nanmax(values))


def _mean(values: npt.NDArray[np.float64]) -> Number:
    return None if np.isnan(values).all() else float(np.nanmean(values))
