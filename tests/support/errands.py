"""A thread that stands for the main one of a daemon: it makes the calls of others."""

from __future__ import annotations

import contextlib
import threading

from colmet.common.daemon.control import Errands


@contextlib.contextmanager
def served_errands(work=lambda: None):
    """Errands that a thread serves until the end, and does some work in between."""
    ended = threading.Event()
    with Errands() as errands:

        def run():
            while not ended.wait(0.001):
                errands.serve()
                work()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield errands
        finally:
            ended.set()
            thread.join()
