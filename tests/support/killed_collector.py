"""Runs the collector as its command line does, and kills itself at a given place.

usage: killed_collector.py PLACE SEGMENT_BYTES COLLECTOR-ARGUMENT...

A place is THREAD:MODULE:NAME:WHEN:COUNT, e.g. hdf5:tables:Table.append:before:3 kills it when the thread of that output
is about to append for the third time; an empty one is nowhere.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading

from colmet.collector import main
from colmet.collector.backends import NAMES
from colmet.collector.journal.journal import Journal
from colmet.common.daemon import startup


def kill_at(place):
    thread, module, name, when, count = place.split(":")
    owner = importlib.import_module(module)
    *path, name = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    work = getattr(owner, name)
    left = int(count)

    def counted(*arguments, **options):
        nonlocal left
        here = threading.current_thread().name == thread
        left -= here
        if here and left == 0 and when != "after":
            if when == "half":
                work(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        result = work(*arguments, **options)
        if here and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def start(place, segment_bytes, *arguments):
    main.Journal = functools.partial(Journal, segment_bytes=int(segment_bytes))
    startup.load(NAMES)
    for one in filter(None, place.split("|")):
        kill_at(one)
    return startup.run_daemon(main.load_backends(), main.build_parser, main.check, main.run, arguments)


if __name__ == "__main__":
    sys.exit(start(*sys.argv[1:]))
