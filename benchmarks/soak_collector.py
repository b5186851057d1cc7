"""A real collector over a long time: memory, descriptors and threads as rows arrive and jobs start and end.

Nodes send to it; it writes to HDF5 and to a database in another process that discards all documents. Flat means: after
a third of the rows, memory stays within 10 % of its size then.

    python benchmarks/soak_collector.py --rows 2000000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench_collector import ROWS_PER_MESSAGE, Collector, Senders
from measuring import discarding_server, free_uri

PRINT_S = 10.0
SETTLED = 1 / 3  # of the rows: by then all that is bounded has been filled
FLAT = 0.10


def soak(options: argparse.Namespace, folder: Path, port: int) -> bool:
    """Send, and print what the collector holds; return whether that stayed flat."""
    uri = free_uri()
    output = ["--hdf5-filepath", str(folder / "x"), "--hdf5-complevel", str(options.complevel)]
    if options.elastic:
        output += ["--elastic-host", f"http://127.0.0.1:{port}"]
    collector = Collector(folder / "log", "--zeromq-bind-uri", uri, "--journal-size", "1G", *output)
    messages = options.rows // ROWS_PER_MESSAGE
    seconds = messages / (options.nodes * options.rate) + 1
    senders = Senders(uri, 0, options.nodes, seconds, options.rate, options.jobs, options.churn)
    settled: list[tuple[float, int, int]] = []
    began = time.monotonic()
    print(f"{'s':>6} {'rows':>10} {'in HDF5':>10} {'MB':>8} {'descriptors':>12} {'threads':>8} {'% of a core':>12}")
    try:
        collector.wait_for(1, 60)
        used_s, at = 0.0, time.monotonic()
        while collector.process.poll() is None and time.monotonic() < began + seconds + 60:
            done = collector.wait_for(messages, PRINT_S)
            held = collector.held()
            now_s, now = sum(collector.cpu_s().values()), time.monotonic()
            rows = collector.acknowledged * ROWS_PER_MESSAGE
            written = collector.position(folder / "x.journal", "hdf5") * ROWS_PER_MESSAGE
            share = 100 * (now_s - used_s) / (now - at)
            used_s, at = now_s, now
            line = f"{now - began:6.0f} {rows:10} {written:10} {held[0]:8.1f} {held[1]:12} {held[2]:8} {share:12.0f}"
            print(line, flush=True)
            if rows >= SETTLED * options.rows:
                settled.append(held)
            if done:
                break
        status = collector.stop()
        for line in (folder / "log").read_text().splitlines():
            if "output" in line or "received" in line:
                print(line[:240])
    finally:
        senders.close()
        collector.process.kill()
    mbytes, descriptors, threads = zip(*settled)
    first = mbytes[0]
    flat = all(abs(one - first) <= FLAT * first for one in mbytes)
    print(
        f"{rows} rows; from {SETTLED:.0%} of them on: {first:.1f} MB, then {min(mbytes):.1f} to {max(mbytes):.1f} MB, "
        f"{min(descriptors)} to {max(descriptors)} descriptors, {min(threads)} to {max(threads)} threads; "
        f"exit status {status}; {'flat' if flat else 'NOT FLAT'}"
    )
    return flat and status == 0 and rows >= options.rows


def main() -> int:
    """Soak; 0 where it was flat."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="to send (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rate", type=float, default=6.0, help="messages of a node in a second (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=400, help="at a time (default: %(default)s)")
    parser.add_argument("--churn", type=float, default=0.04, help="share of the jobs replaced in a second")
    parser.add_argument("--complevel", type=int, default=0, help="of the HDF5 file")
    parser.add_argument("--elastic", action="store_true", help="write to a database, too, which discards everything")
    options = parser.parse_args()
    with discarding_server() as port, tempfile.TemporaryDirectory() as name:
        return 0 if soak(options, Path(name), port) else 1


if __name__ == "__main__":
    sys.exit(main())
