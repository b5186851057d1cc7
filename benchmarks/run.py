"""Run every benchmark and print its figures: ``make bench``.

python benchmarks/run.py [NAME...]      e.g. node, wire, hdf5
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

from measuring import show


def main() -> int:
    """Print the figures of the benchmarks named on the command line, or of all."""
    here = Path(__file__).resolve().parent
    known = sorted(path.stem[len("bench_") :] for path in here.glob("bench_*.py"))
    wanted = sys.argv[1:] or known
    unknown = set(wanted) - set(known)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.2f}. A busy machine is slower.")
    for name in wanted:
        print(f"\n{name}", flush=True)
        show(importlib.import_module(f"bench_{name}").run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
