"""Cost of a change of options of running nodes: a real collector, simulated nodes on its link."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from measuring import Figure, cpu_ns, free_uri

from colmet import __version__
from colmet.common.daemon.control import ask
from colmet.common.errors import Unreachable
from colmet.common.transport import LinkClient, link_uri, wait
from colmet.common.wire import link as wire
from colmet.common.wire.control import encode

COUNTS = (100, 500)
ROUNDS = 20
ANSWER = encode({"ok": True, "changed": {"sample_period": [5.0, 1.5]}, "unchanged": [], "lasts": "until"})


def answer(links: Sequence[LinkClient], ended: threading.Event) -> None:
    """Be the nodes: greet every second, and answer whatever is asked."""
    greeted_at = 0.0
    while not ended.is_set():
        if time.monotonic() > greeted_at + 1:
            greeted_at = time.monotonic()
            for number, link in enumerate(links):
                link.send(wire.encode(wire.Hello(f"node-{number}", 1, 1, __version__, ())))
        wait([link.socket for link in links], (), 0.2)
        for link in links:
            while (message := link.receive()) is not None:
                said = wire.decode(message)
                if isinstance(said, wire.Request):
                    link.send(wire.encode(wire.Answer(said.number, ANSWER)))
    for link in links:
        link.close()


@contextlib.contextmanager
def site(count: int) -> Iterator[tuple[str, int]]:
    """A collector with a number of nodes: its control socket, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        place, uri = f"{folder}/collector.sock", free_uri()
        command = [sys.executable, "-m", "colmet.collector.main", "--zeromq-bind-uri", uri, "--control-socket", place]
        collector = subprocess.Popen(
            [*command, "--enable-stdout-backend"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        ended = threading.Event()
        thread = threading.Thread(target=answer, args=([LinkClient(link_uri(uri)) for _ in range(count)], ended))
        thread.start()
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                with contextlib.suppress(Unreachable):
                    if len(ask(place, "collector", {"sample_period": "1"}, 20)["changed"]) == count:
                        break
                time.sleep(0.1)
            yield place, collector.pid
        finally:
            ended.set()
            thread.join()
            collector.kill()
            collector.wait()


def run() -> list[Figure]:
    """Every figure: name, value, unit, target."""
    figures = []
    for count in COUNTS:
        with site(count) as (place, pid):
            before, took_ms = cpu_ns(pid), []
            for number in range(ROUNDS):
                began = time.perf_counter()
                reply = ask(place, "collector", {"sample_period": f"{number + 1}"}, 20)
                took_ms.append((time.perf_counter() - began) * 1000)
                assert len(reply["changed"]) == count, reply
            used_us = (cpu_ns(pid) - before) / ROUNDS / count / 1000
        figures += [
            (f"configure: {count} nodes through the collector", statistics.median(took_ms), "ms", "below 2000 at 100"),
            (f"configure: CPU of the collector for each of {count}", used_us, "us", ""),
        ]
    return figures
