"""Shared by tests: TIME."""

from __future__ import annotations

TIME = 1_700_000_005 * 10**9 + 999_999_999
