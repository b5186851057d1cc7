"""Shared by tests: V100."""

from __future__ import annotations

CARD = "0, GPU-5a10d111-aaaa, Tesla V100-SXM2-32GB, 00000000:3B:00.0"


V100 = CARD + (
    ", 43.61, 300.00, 17, 3, 32768, 32490, 5, 273, 36, 34, [N/A], 135, 135, 877, P0, 0x0000000000000001, 0, 0, 2, 0"
)
