"""Program to write the dashboards below a folder: ``make dashboards``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dev.dashboards.grafana import files


def main() -> int:
    """Run ``python -m dev.dashboards``; return the exit status."""
    parser = argparse.ArgumentParser(prog="dashboards", description="Write the dashboards for Grafana.")
    parser.add_argument("folder", type=Path, help="where to")
    folder = parser.parse_args().folder
    for name, text in files():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
