"""Shared by tests: JOBS, NODE, PERIOD, START, Node."""

from __future__ import annotations

import os

from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.commands import completeness
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.node.agent_tables import CompletenessStats, DeliveryTotals
from colmet.node.delivery.spool import Dropped
from tests.support.outputs import write

NS = 10**9


START = 1_700_000_000


PERIOD = 5


JOBS = Schema("taskstats_default", "job", [Field("cpu_time", "nsec", "counter")])


NODE = Schema("procstats_default", "node", [Field("load", "none", "gauge")])


class Node:
    """An agent that ticks on a made-up clock; what arrives of its batches is up to the test."""

    def __init__(self, host="node-1", ledger_s=60, period=PERIOD):
        self.host = host
        self.period = period
        self.now = START * 10
        self.arrived = []
        self.missing = []  # (table, job, time) of rows that were due
        self.start(ledger_s)

    def start(self, ledger_s=60):
        """A new agent."""
        self.epoch = self.now * NS // 10
        self.seq = 0
        self.dropped = []
        self.completeness = CompletenessStats(self.delivery, ledger_s, monotonic=lambda: self.now / 10)

    def delivery(self):
        return DeliveryTotals({}, {}, tuple(self.dropped), 0)

    def tick(self, jobs=(1, 2), lost="", missed="", ends=False):
        """One tick: its batch is `lost` without a word or "dropped"; its table of the node is missed for a reason."""
        time_ns = self.now * NS // 10
        self.completeness.begin_tick(time_ns)
        tables = [Table.from_samples(JOBS, time_ns, [Sample(job, {"cpu_time": 1}) for job in jobs])] if jobs else []
        if missed:
            self.completeness.missed(missed, [NODE], bool(jobs), True)
            self.missing.append((NODE.name, 0, self.now // 10))
        else:
            tables.append(Table.from_samples(NODE, time_ns, [Sample(0, {"load": 1})]))
        self.seq += 1
        batch = Batch(self.host, self.epoch, self.seq, time_ns, tuple(jobs), tuple(tables))
        batch = self.completeness.add(batch, self.period, ends)
        if lost:
            for table in batch.tables:
                self.missing += [(table.schema.name, row.job_id, self.now // 10) for row in table.samples()]
        else:
            self.arrived.append(batch)
        if lost == "dropped":
            before = self.dropped[-1] if self.dropped else None
            if before is not None and before.last == self.seq - 1:
                self.dropped[-1] = before._replace(last=self.seq, until_ns=time_ns)
            else:
                self.dropped.append(Dropped(self.epoch, self.seq, self.seq, time_ns, time_ns, "age"))
        self.now += round(self.period * 10)

    def ticks(self, count, **how):
        for _ in range(count):
            self.tick(**how)

    def lines(self, tmp_path, **asked):
        """What the tool finds in a file of what arrived."""
        path = tmp_path / "x.hdf5"
        if not path.exists():
            write(Hdf5Output(str(path)), self.arrived)
            os.utime(path, (START, START))  # a file that was written just now is waited for
        asked = {"job": None, "since": None, "until": None, **asked}
        return {line.table: line for line in completeness.look(completeness.read([str(path)]), **asked)}

    def missing_of(self, table, job=None):
        return sorted([time for name, one, time in self.missing if name == table and job in (None, one)])
