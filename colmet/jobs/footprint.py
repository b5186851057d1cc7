"""Short curves of a job on one host: CPUs in use, memory, use of GPUs, at most 64 points each.

A point covers 2^k seconds. When the job outlives the last point, pairs of points are joined and k grows by one. Sums
of points are whole numbers. Packed, a footprint is: the version (1 byte, `FORM`), k (1 byte), the number of points
(1 byte), the curves (1 byte, a bit each in the order of `CURVES`), then zlib of the points of each curve as
little-endian floats of 4 bytes, NaN for a missing one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from colmet.common.schema import MISSING_INT
from colmet.jobs.fold_layout import Floats, Ints

FORM = 1
POINTS = 64
MAX_BYTES = 2048
CURVES = ("cpu", "memory", "gpu")  # CPUs in use, the most bytes, GPUs in use
_HEADER = struct.Struct("<BBBB")
_LONGEST = 40  # k of more seconds than any job has


class _Field(NamedTuple):
    size: int
    empty: int


FIELDS: Mapping[str, _Field] = {
    "scale": _Field(3, 0),  # k; CPU time up to the last point, in ns; its time
    "cpu_ns": _Field(POINTS, 0),
    "cpu_s": _Field(POINTS, 0),  # seconds of known CPU time
    "memory": _Field(POINTS, MISSING_INT),
    "gpu": _Field(POINTS, 0),  # percent of one GPU, summed over samples
    "gpu_samples": _Field(POINTS, 0),
}
_SCALE, _MARK, _TIME = range(3)


class Footprint(NamedTuple):
    """The curves of a job; several hosts are added."""

    step_s: int  # of a point
    curves: Mapping[str, Floats]  # by name, see `CURVES`; NaN for a missing point; all of one length


def add(
    fields: Mapping[str, Ints], slots: Ints, start: Ints, began: Ints, now: Ints, cpu: Ints, memory: Ints, gpu: Ints
) -> None:
    """Add a sample of each slot.

    `fields` are arrays of `FIELDS`; `began` is above 0 if the start is known; `cpu` is the CPU time since then in ns,
    -1 if unknown, `memory` in bytes, and `gpu` in percent of one GPU.
    """
    scale = fields["scale"][slots]
    at = np.maximum(now - start, 0)
    while True:
        beyond = (at >> scale[:, _SCALE] >= POINTS) & (scale[:, _SCALE] < _LONGEST)
        if not beyond.any():
            break
        _halve(fields, slots[beyond])
        scale[beyond, _SCALE] += 1
    point = np.minimum(at >> scale[:, _SCALE], POINTS - 1)
    is_first = scale[:, _TIME] == 0
    seconds = np.where(is_first, np.where(began > 0, at, 0), np.maximum(now - scale[:, _TIME], 0))
    grown = np.maximum(cpu - scale[:, _MARK], 0)
    known = seconds > 0
    fields["cpu_ns"][slots, point] += np.where(known, grown, 0)
    fields["cpu_s"][slots, point] += np.where(known & (cpu >= 0), seconds, 0)
    fields["memory"][slots, point] = np.maximum(fields["memory"][slots, point], memory)
    fields["gpu"][slots, point] += np.maximum(gpu, 0)
    fields["gpu_samples"][slots, point] += gpu >= 0
    scale[:, _MARK] = np.maximum(cpu, scale[:, _MARK])
    scale[:, _TIME] = np.maximum(now, scale[:, _TIME])
    fields["scale"][slots] = scale


def _halve(fields: Mapping[str, Ints], slots: Ints) -> None:
    for name, field in FIELDS.items():
        if field.size != POINTS:
            continue
        pairs = fields[name][slots].reshape(len(slots), -1, 2)
        joined = pairs.max(axis=2) if field.empty == MISSING_INT else pairs.sum(axis=2)
        rest = np.full(joined.shape, field.empty, np.int64)
        fields[name][slots] = np.concatenate([joined, rest], axis=1)


def of_slot(fields: Mapping[str, Ints], slot: int, wall_s: int) -> Footprint:
    """Return the curves of a slot."""
    scale = int(fields["scale"][slot, _SCALE])
    points = min(POINTS, (max(0, wall_s) >> scale) + 1)
    cpu_s, samples = fields["cpu_s"][slot][:points], fields["gpu_samples"][slot][:points]
    memory = fields["memory"][slot][:points]
    curves = {
        "cpu": _divided(fields["cpu_ns"][slot][:points] * 1e-9, cpu_s),
        "memory": np.where(memory < 0, np.nan, memory.astype(np.float64)),
        "gpu": _divided(fields["gpu"][slot][:points] * 0.01, samples),
    }
    return Footprint(1 << scale, {name: curve for name, curve in curves.items() if not np.isnan(curve).all()})


def _divided(values: Floats, by: Ints) -> Floats:
    found = np.full(len(values), np.nan)
    np.divide(values, by, out=found, where=by > 0)
    return found


def summed(parts: Sequence[tuple[int, Footprint]]) -> Footprint | None:
    """Return the curves of several hosts added, each with its start, on the coarsest of their scales.

    A missing point of one host counts as its last known one before; where no host has one, the sum is missing.
    """
    parts = [(start, one) for start, one in parts if one.curves]
    if not parts:
        return None
    first = min([start for start, _ in parts])
    step_s = max([one.step_s for _, one in parts])
    ends = [start - first + one.step_s * len(next(iter(one.curves.values()))) for start, one in parts]
    while -(-max(ends) // step_s) > POINTS:
        step_s *= 2
    count = max(1, -(-max(ends) // step_s))
    curves: dict[str, Floats] = {}
    for name in CURVES:
        lines = [
            _stretched(one.curves[name], start - first, one.step_s, step_s, count, name)
            for start, one in parts
            if name in one.curves
        ]
        if lines:
            stacked = np.array(lines)
            gaps = np.isnan(stacked)
            if gaps.any():
                stacked[gaps] = 0.0
            curves[name] = stacked.sum(axis=0)
            curves[name][gaps.all(axis=0)] = np.nan
    return Footprint(step_s, curves)


def _stretched(values: Floats, offset_s: int, step_s: int, to_s: int, count: int, name: str) -> Floats:
    """Return a curve on another scale: means, of memory the largest values; its gaps filled with the value before."""
    gaps = np.isnan(values)
    filled = values
    if gaps.any():
        known = np.flatnonzero(~gaps)
        filled = values[np.maximum.accumulate(np.where(gaps, known[0] if len(known) else 0, np.arange(len(values))))]
    if step_s == to_s:
        first = offset_s // to_s
        if not first and len(filled) == count:
            return filled
        found = np.full(count, np.nan)
        found[first : first + len(filled)] = filled
        return found
    places = np.minimum((offset_s + step_s * np.arange(len(values))) // to_s, count - 1)
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    found = np.full(count, np.nan)
    if name == "memory":
        found[places[begins]] = np.maximum.reduceat(filled, begins)
    else:
        found[places[begins]] = np.add.reduceat(filled, begins) / np.diff(begins, append=len(places))
    return found


def encode(footprint: Footprint) -> bytes:
    """Return the packed curves."""
    curves = [name for name in CURVES if name in footprint.curves]
    count = max([len(footprint.curves[name]) for name in curves], default=0)
    bits = sum([1 << CURVES.index(name) for name in curves])
    values = b"".join([footprint.curves[name].astype("<f4").tobytes() for name in curves])
    packer = zlib.compressobj(1, zlib.DEFLATED, 10, 2)  # for so few bytes as small as others, in a third of the time
    packed = packer.compress(values) + packer.flush()
    return _HEADER.pack(FORM, footprint.step_s.bit_length() - 1, count, bits) + packed


def decode(packed: bytes) -> Footprint:
    """Return the curves of `encode`; ValueError for others."""
    try:
        form, scale, count, bits = _HEADER.unpack_from(packed)
        if form != FORM or count > POINTS or scale > _LONGEST or bits >> len(CURVES):
            raise ValueError(f"a footprint of another form, {form}")
        names = [name for n, name in enumerate(CURVES) if bits >> n & 1]
        size = 4 * count * len(names)
        expanded = zlib.decompressobj().decompress(packed[_HEADER.size :], size + 1)
    except (struct.error, zlib.error) as err:
        raise ValueError(f"a damaged footprint: {err}") from err
    if len(expanded) != size:
        raise ValueError("a damaged footprint")
    values = np.frombuffer(expanded, "<f4").astype(np.float64).reshape(len(names), count)
    return Footprint(1 << scale, dict(zip(names, values)))
