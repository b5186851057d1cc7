"""Write the dashboards for Grafana below a folder: ``python -m dev.dashboards FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from dev.dashboards.grafana import files

for name, text in files():
    path = Path(sys.argv[1], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
