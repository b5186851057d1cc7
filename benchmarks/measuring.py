"""What the benchmarks share: figures, CPU time, memory, measurements in turns, and a server that discards documents."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import socketserver
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # dev/ and tests/ are not installed
from dev.live import JobRoot, free_port

Figure = tuple[str, float, str, str]  # quantity, value, unit, target
T = TypeVar("T")

TIME_NS = 1_700_000_000_000_000_000
WARM_BYTES = 256 << 20  # of a file, written and removed first: memory that a virtual machine has never used is slow


def show(figures: Iterable[Figure]) -> None:
    """Print figures, a line each."""
    for what, value, unit, target in figures:
        print(f"  {what:<74} {value:14,.2f} {unit:<16} {target}", flush=True)


def cpu_us(
    work: Callable[[], object],
    units: int = 1,
    calls: int = 10,
    rounds: int = 15,
    clock: Callable[[], float] = time.process_time,
    pick: Callable[[Sequence[float]], float] = statistics.median,
) -> float:
    """Return the CPU time of a call in microseconds per unit: the median of some rounds, after a first call."""
    work()
    found = []
    for _ in range(rounds):
        start = clock()
        for _ in range(calls):
            work()
        found.append((clock() - start) / calls / units * 1e6)
    return pick(found)


def in_turns(measures: Sequence[Callable[[], T]], rounds: int, warm: bool = True) -> list[list[T]]:
    """Return the results of each measurement: all of them once a round, each round beginning with another one.

    Args:
        measures: the measurements.
        rounds: with results.
        warm: whether a round without results comes first.
    """
    found: list[list[T]] = [[] for _ in measures]
    for n in range(rounds + warm):
        for turn in range(len(measures)):
            which = (n + turn) % len(measures)
            found[which].append(measures[which]())
    return [results[warm:] for results in found]


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process with all its threads."""
    return time.clock_gettime_ns(~pid << 3 | 2)  # CPUCLOCK_SCHED of another process, see clock_getcpuclockid(3)


def rss_mb(pid: int | str = "self") -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def warm_memory(folder: Path) -> None:
    """Write a large file and remove it."""
    path = folder / "warm"
    path.write_bytes(bytes(WARM_BYTES))
    path.unlink()


def job_root() -> contextlib.AbstractContextManager[JobRoot]:
    """Return a directory for jobs."""
    return contextlib.closing(JobRoot(f"colmet-bench-{os.getpid()}-{time.monotonic_ns()}"))


def free_uri() -> str:
    """Return an address with a free port; the next one is free, too, for the link."""
    return f"tcp://127.0.0.1:{free_port()}"


class Discard(socketserver.StreamRequestHandler):
    """Replies to every bulk request of documents that all are stored."""

    def handle(self) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line := self.rfile.readline():
            length = 0
            while (header := self.rfile.readline()).strip():
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = self.rfile.read(length)
            status, answer = b"200 OK", b"{}"
            if line.startswith(b"POST"):
                items = b",".join([b'{"create":{"status":201}}'] * (body.count(b"\n") // 2))
                answer = b'{"errors":false,"items":[' + items + b"]}"
            elif line.startswith(b"GET"):
                status = b"404 Not Found"
            elif line.startswith(b"HEAD"):
                answer = b""
            self.wfile.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(answer), answer))


def _serve(pipe: Any) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Discard) as server:
        server.daemon_threads = True
        pipe.send(server.server_address[1])
        server.serve_forever()


@contextlib.contextmanager
def discarding_server() -> Iterator[int]:
    """Run a server that discards documents, in a process of its own; yield its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        yield int(ours.recv())
    finally:
        server.kill()
        server.join()
