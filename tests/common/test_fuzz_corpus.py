"""What fuzzing has found, and the inputs by which it reaches every part of the decoders, once more (tests/fuzz)."""

from __future__ import annotations

import importlib
import tracemalloc
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "fuzz"
NAMES = sorted([path.stem[len("fuzz_") :] for path in HERE.glob("fuzz_*.py")])


@pytest.fixture
def target(request, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module(f"fuzz_{request.param}")


@pytest.mark.parametrize("target", NAMES, indirect=True, ids=str)
def test_each_input_is_decoded_or_refused_in_bounded_memory(target):
    name = target.__name__[len("fuzz_") :]
    inputs = {f"seed {n}": seed for n, seed in enumerate(target.SEEDS)}
    inputs.update({path.name: path.read_bytes() for path in sorted((HERE / "corpus" / name).glob("*"))})
    for data in target.SEEDS:
        target.one(data)  # what is made once and kept is no input's
    tracemalloc.start()
    try:
        for which, data in inputs.items():
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                target.one(data)
            except Exception as err:
                raise AssertionError(f"corpus/{name}, {which}: {data[:200]!r}") from err
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < (8 << 20) + 64 * len(data), f"corpus/{name}, {which}: {peak - before} bytes"
    finally:
        tracemalloc.stop()
