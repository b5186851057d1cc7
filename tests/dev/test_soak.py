"""What a soak calls flat, and what not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def samples_module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield pytest.importorskip("soak_samples")
    for name in ("soak_samples", "measuring"):
        sys.modules.pop(name, None)


HOURS = [n / 60 for n in range(121)]


def made(values):
    return {"hours": HOURS, "batches": [100.0 * n for n in range(121)], "it": values}


@pytest.mark.parametrize(
    ("kind", "values", "is_good", "text"),
    [
        ("flat", [100.0] * 121, True, "flat"),
        ("flat", [50 + min(n, 30) for n in range(121)], True, "flat"),  # grows in the first quarter alone
        ("flat", [100 + (40 if n % 10 == 0 else n % 3) for n in range(121)], True, "flat"),  # peaks
        ("flat", [100 + n / 6 for n in range(121)], False, "GROWS by 10.00 MB an hour"),
        ("flat", [100 - n / 6 for n in range(121)], True, "flat"),
        ("rows", [n * 0.1 for n in range(121)], True, "1,000 bytes a batch"),
        ("rows", [n * 0.1 * (1 + n / 120) for n in range(121)], False, "GROWS FASTER"),
        ("lines", [n / 10 for n in range(121)], True, "6.0 lines an hour"),
        ("lines", [n * 2.0 for n in range(121)], False, "120.0 lines an hour: TOO MANY"),
    ],
)
def test_the_verdict(samples_module, kind, values, is_good, text):
    figure = samples_module.Figure("it", "MB", kind)
    found = samples_module.judge(figure, made(values))
    assert found[0] is is_good and text in found[1]
    assert samples_module.table([figure], made(values))[0] is is_good
