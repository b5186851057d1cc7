"""Runs the agent with every backend over a root that a test made, and prints how late its ticks were and what it held.

usage: every_backend.py ROOT PERIOD_S TICKS OPTION...
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from colmet.common.daemon import startup
from colmet.common.daemon.wakeup import Signals
from colmet.common.host.host import Host
from colmet.common.wire import v1
from colmet.node import agent_tables, main
from colmet.node.agent import Agent
from colmet.node.backends import NAMES
from colmet.node.schedule import Schedule
from tests.support.direct import Direct

DEADLINE_S = 0.4  # of each program: so that it is met often
HANG_AT = 60  # the tick from which on programs hang, by the file `hang` in the root


def held():
    """Descriptors, threads, and processes started and not reaped, of this process now."""
    tasks = list(Path("/proc/self/task").iterdir())
    children = []
    for task in tasks:
        with contextlib.suppress(OSError):  # a backend's thread has ended meanwhile
            children += (task / "children").read_text().split()
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(tasks), "processes": len(children)}


class Timed(Agent):
    """An agent that notes how late each tick is."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.late_s, self.took_s, self.held, self.rows = [], [], [], {}

    def tick(self):
        schedule = self._schedule
        self.late_s.append(time.monotonic() - (schedule._start + schedule._next * schedule.period_s))
        began = time.monotonic()
        batch = super().tick()
        self.took_s.append(time.monotonic() - began)
        for table in batch.tables:
            self.rows[table.schema.name] = self.rows.get(table.schema.name, 0) + len(table)
        self.held.append(held())
        if len(self.held) == HANG_AT:
            Path(sys.argv[1], "hang").touch()
        if len(self.held) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGTERM)
        return batch


def run():
    root, period_s = sys.argv[1], float(sys.argv[2])
    classes = startup.load(NAMES)
    options = main.build_parser(classes).parse_args(["-s", str(period_s), "--state-dir", "", *sys.argv[4:]])
    startup.set_up_logging(options.verbose)
    host = Host(root)
    make_command = host.command
    host.command = lambda argv, deadline_s, *more, **named: make_command(argv, DEADLINE_S, *more, **named)
    backends = [backend for cls in classes if (backend := cls.from_options(options, host)) is not None]
    source = main.find_jobs(options, host)
    own = agent_tables.AgentStats(host, 0)
    sent = []
    spool = Direct(v1.encode, lambda message: sent.append(len(message)) or True)
    agent = Timed("node", source, backends, spool, Schedule(period_s), None, own)
    with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
        agent.run(signals)
    counts = {runner.name: {"failures": runner.failures, **runner.counters()} for runner in agent.runners}
    host.stop_commands()
    agent.close()
    print(
        json.dumps(
            {
                "late_s": agent.late_s,
                "took_s": agent.took_s,
                "held": agent.held,
                "rows": agent.rows,
                "counts": counts,
                "skipped": agent._schedule.overruns,
                "backends": [backend.name for backend in backends],
            }
        )
    )


if __name__ == "__main__":
    run()
