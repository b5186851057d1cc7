"""The completeness rows and the command report exactly the missing samples."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.commands import completeness
from colmet.common.errors import ConfigError
from colmet.common.schema import Batch, Sample, Table
from colmet.node.agent_tables import FAILED, LATE
from colmet.node.delivery.spool import Dropped
from colmet.stored import gap_finder
from tests.support.made_up_node import JOBS, NODE, NS, PERIOD, START, Node
from tests.support.outputs import write

PATHS = os.pathsep.join(str(path) for path in (Path(__file__).parents[1], Path(__file__).parents[2]))

SEEDS = [*range(4), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12)]]


def lost_of(line):
    """Samples and rows that are missing for a reason, and the first and the last second of their gaps."""
    gaps = [gap for gap in line.found.gaps if gap.rows]
    (why,) = {gap.why for gap in gaps}
    span = min(gap.first for gap in gaps) - START, max(gap.last for gap in gaps) - START
    return sum(gap.samples for gap in gaps), sum(gap.rows for gap in gaps), why, span


def spans(line):
    return [(gap.first - START, gap.last - START, gap.samples, gap.rows, gap.why) for gap in line.found.gaps]


def test_nothing_is_missing_where_all_has_come(tmp_path):
    node = Node()
    node.ticks(50)
    lines = node.lines(tmp_path)
    assert set(lines) == {JOBS.name, NODE.name, "completeness_default"}
    assert all(line.found.missing == 0 and not line.found.twice and line.found.until for line in lines.values())
    assert (lines[JOBS.name].found.here, lines[NODE.name].found.here) == (100, 50)


@pytest.mark.parametrize("period", [1, 0.5])
def test_a_last_row_of_the_second_of_an_account_is_not_missing(tmp_path, period):
    """A job ends after a tick, and its last row has the time of the next second: see `Agent`."""
    node = Node(ledger_s=5, period=period)
    for _ in range(40):
        node.tick()
        second = (node.now - round(period * 10)) // 10 + 1
        last = Table.from_samples(JOBS, second * NS, [Sample(node.now, {"cpu_time": 1})])
        node.seq += 1
        batch = Batch(node.host, node.epoch, node.seq, node.now * NS // 10 - 300_000_000, (1, 2), (last,))
        node.arrived.append(node.completeness.add(batch, node.period))
    node.now += 20
    node.tick()
    lines = node.lines(tmp_path)
    assert lines[JOBS.name].found.here == 40 * 3 + 2
    assert all(line.found.missing == 0 and not line.found.twice for line in lines.values())


def test_a_last_row_is_not_missing_where_the_agent_ends_in_the_second_of_its_job(tmp_path):
    node = Node(ledger_s=5, period=1)
    node.ticks(7)
    second = node.now // 10 - 1  # of the last tick
    last = Table.from_samples(JOBS, (second + 1) * NS, [Sample(1, {"cpu_time": 1})])
    for n, tables, ends in ((3, (last,), False), (6, (), True)):
        node.seq += 1
        batch = Batch(node.host, node.epoch, node.seq, second * NS + n * NS // 10, (), tables)
        node.arrived.append(node.completeness.add(batch, node.period, ends))
    lines = node.lines(tmp_path)
    assert all(line.found.missing == 0 and not line.found.twice for line in lines.values())


def test_batches_dropped_beyond_the_bound_are_reported_with_their_times(tmp_path):
    node = Node()
    node.ticks(30)
    node.ticks(100, lost="dropped")
    node.ticks(30)
    lines = node.lines(tmp_path)
    for table, rows in ((JOBS.name, 200), (NODE.name, 100)):
        *counts, (first, last) = lost_of(lines[table])
        assert counts == [100, rows, gap_finder.DROPPED]
        assert 150 - 60 < first <= 150 and 645 <= last < 645 + 60


def test_a_job_has_its_share_of_a_gap(tmp_path):
    node = Node()
    node.ticks(30, jobs=(1,))
    node.ticks(100, jobs=(1, 2), lost="dropped")
    node.ticks(30, jobs=(1, 2))
    lines = node.lines(tmp_path, job=1)
    assert set(lines) == {JOBS.name}
    assert lines[JOBS.name].found.here == 60
    assert lost_of(lines[JOBS.name])[:3] == (100, 100, gap_finder.DROPPED)
    # that the other one was there before is in no batch that came
    lines = node.lines(tmp_path, job=2)
    assert lines[JOBS.name].found[:2] == (30, 0)


def test_an_account_that_was_dropped_is_reported_again(tmp_path):
    node = Node()
    node.ticks(20)
    node.ticks(3, missed=FAILED)
    node.ticks(20)
    node.arrived, lost = node.arrived[:23], node.arrived[23:]  # the account that has it, and others
    for batch in lost:
        node.missing += [(t.schema.name, r.job_id, t.time_ns // NS) for t in batch.tables for r in t.samples()]
    node.dropped.append(Dropped(node.epoch, 24, 43, lost[0].time_ns, lost[-1].time_ns, "age"))
    node.ticks(20)
    lines = node.lines(tmp_path)
    counts = {
        why: sum(gap[3] for gap in spans(lines[NODE.name]) if gap[4] == why) for *_, why in spans(lines[NODE.name])
    }
    assert counts == {gap_finder.FAILED: 3, gap_finder.DROPPED: 20}


@pytest.mark.parametrize(("why", "said"), [(FAILED, gap_finder.FAILED), (LATE, gap_finder.LATE)])
def test_what_was_not_measured_is_reported(tmp_path, why, said):
    node = Node()
    node.ticks(20)
    node.ticks(30, missed=why)
    node.ticks(20)
    node.tick(missed=why)
    node.ticks(20)
    lines = node.lines(tmp_path)
    assert spans(lines[NODE.name]) == [(100, 245, 30, 30, said), (350, 350, 1, 1, said)]
    assert lines[JOBS.name].found.missing == 0


def test_skipped_ticks_are_reported_each_table(tmp_path):
    node = Node()
    node.ticks(20)
    node.completeness.skipped(4, PERIOD)
    node.now += 4 * PERIOD * 10
    node.ticks(20)
    lines = node.lines(tmp_path)
    assert spans(lines[NODE.name]) == [(100, 115, 4, 4, gap_finder.LATE)]
    assert spans(lines[JOBS.name]) == [(100, 115, 4, 8, gap_finder.LATE)]
    assert lines["completeness_default"].found.missing == 0


def test_what_was_taken_and_has_not_come_is_found_without_a_word(tmp_path):
    node = Node()
    node.ticks(20)
    node.ticks(3, lost="silently")
    node.ticks(30)
    lines = node.lines(tmp_path)
    assert lost_of(lines[NODE.name])[:3] == (3, 3, gap_finder.NOT_HERE)
    (gap,) = lines[JOBS.name].found.gaps
    assert (gap.samples, gap.rows, gap.why) == (3, 6, gap_finder.NOT_HERE)
    assert gap.first - START <= 100 and gap.last - START >= 110
    of_one = node.lines(tmp_path, job=2)[JOBS.name].found
    assert (of_one.here, of_one.missing) == (50, 3)


def test_a_node_that_was_killed_leaves_a_gap_up_to_its_next_start(tmp_path):
    node = Node()
    node.ticks(30)
    node.ticks(10, lost="with the process")
    node.now += 20 * PERIOD * 10
    node.start()
    node.ticks(30)
    lines = node.lines(tmp_path)
    assert spans(lines[NODE.name]) == [(150, 295, 30, 30, gap_finder.KILLED)]
    assert lines[JOBS.name].found.missing == 60
    of_one = node.lines(tmp_path, job=2)[JOBS.name]
    assert spans(of_one) == [(150, 295, 30, 30, gap_finder.KILLED)]


@pytest.mark.parametrize(("period", "a_second"), [(1, 1), (0.2, 5)])
def test_rows_after_the_last_account_of_a_node_that_was_killed_are_not_missing(tmp_path, period, a_second):
    """Of samples of a second and less; accounts come each minute, and this crash is 42 s after one."""
    node = Node(period=period, ledger_s=60)
    node.ticks(102 * a_second)
    node.ticks(10 * a_second, lost="with the process")
    node.now += 65 * 10
    node.start(60)
    node.ticks(100 * a_second)
    lines = node.lines(tmp_path)
    assert spans(lines[NODE.name]) == [(102, 176, 75 * a_second, 75 * a_second, gap_finder.KILLED)]
    assert lines[JOBS.name].found.missing == 2 * 75 * a_second
    assert lines[NODE.name].found.here == 202 * a_second


@pytest.mark.parametrize("seed", SEEDS)
def test_agents_that_follow_each_other_within_seconds_are_distinguished(tmp_path, seed):
    """Accounts come at any time of the second in which the one ends and the next one starts."""
    rng = random.Random(seed)
    ledger_s = rng.choice([0.1, 0.3, 1, 60])
    node = Node(period=0.1, ledger_s=ledger_s)
    for _ in range(4):
        node.ticks(rng.randrange(3, 40))
        node.tick(ends=True)
        node.now += rng.randrange(6)
        node.start(ledger_s)
    node.ticks(50)
    node.ticks(30, lost="silently")
    node.ticks(700)
    found = node.lines(tmp_path)[NODE.name].found
    assert found.twice == 0
    assert sum(gap.rows for gap in found.gaps if gap.why == gap_finder.NOT_HERE) == 30


def test_a_node_that_was_stopped_is_distinguished_from_one_that_was_killed(tmp_path):
    node = Node()
    node.ticks(30)
    node.tick(ends=True)
    node.now += 19 * PERIOD * 10
    node.start()
    node.ticks(30, jobs=(7,))
    lines = node.lines(tmp_path)
    assert spans(lines[NODE.name]) == [(155, 245, 19, 19, gap_finder.STOPPED)]
    assert lines[JOBS.name].found.missing == 0  # no job was there before and after


def test_what_an_earlier_start_had_in_its_spool_and_was_dropped_later_is_reported(tmp_path):
    node = Node()
    node.ticks(30)
    first = node.seq + 1, node.now
    node.ticks(10, lost="dropped")
    epoch, dropped = node.epoch, node.dropped
    node.start()
    node.dropped = dropped
    node.ticks(30)
    assert (epoch, first[0]) == node.dropped[0][:2]
    lines = node.lines(tmp_path)
    assert spans(lines[NODE.name]) == [(150, 195, 10, 10, gap_finder.DROPPED)]


def test_what_was_dropped_and_had_come_is_not_missing(tmp_path):
    node = Node()
    node.ticks(30)
    node.ticks(100, lost="dropped")
    node.ticks(30)
    node.dropped[0] = node.dropped[0]._replace(last=150, until_ns=node.arrived[49].time_ns)
    node.ticks(30)
    lines = node.lines(tmp_path)
    assert lost_of(lines[NODE.name])[:3] == (100, 100, gap_finder.DROPPED)


def test_rows_of_an_older_file_are_not_missed_in_a_newer_one(tmp_path):
    node = Node()
    node.ticks(300)
    node.arrived = node.arrived[200:]
    lines = node.lines(tmp_path)
    assert all(line.found.missing == 0 for line in lines.values())


def test_rows_that_two_files_have_count_once(tmp_path):
    node = Node()
    node.ticks(60)
    paths = [str(tmp_path / name) for name in ("a.hdf5", "b.hdf5")]
    write(Hdf5Output(paths[0]), node.arrived[:40])
    write(Hdf5Output(paths[1]), node.arrived[30:])
    found = {line.table: line.found for line in completeness.look(completeness.read(paths), None, None, None)}
    assert (found[JOBS.name].here, found[JOBS.name].missing, found[JOBS.name].twice) == (120, 0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_as_many_rows_are_missing_as_are_reported(tmp_path, seed):
    rng = random.Random(seed)
    node = Node()
    node.ticks(3)
    for _ in range(30):
        what = rng.choice(["", "", "dropped", "silently", "missed"])
        count = rng.choice([1, 2, 5, 30])
        jobs = tuple(rng.sample(range(1, 6), rng.randrange(4)))
        if what == "missed":
            node.ticks(count, jobs=jobs, missed=rng.choice([FAILED, LATE]))
        else:
            node.ticks(count, jobs=jobs, lost=what)
    node.ticks(40)
    for name, line in node.lines(tmp_path).items():
        assert line.found.missing == len(node.missing_of(name)), name
        assert line.found.twice == 0
        for at in node.missing_of(name):  # an account of gaps comes now and then, and leaves no hole
            assert name == "gaps_default" or any(gap.first <= at <= gap.last for gap in line.found.gaps), (
                name,
                at - START,
                spans(line),
            )


def test_the_command_says_it_in_words(tmp_path, run):
    node = Node()
    node.ticks(1000)
    node.tick(lost="dropped")
    node.ticks(20)
    node.lines(tmp_path)
    status, out, _ = run("completeness", tmp_path / "x.hdf5", "--job", "2")
    assert status == 1
    assert "99.90 % of the samples of job 2 are stored: 1,020 of 1,021, 1 missing" in out
    assert "2023-11-14T23:36:40Z .. 2023-11-14T23:36:40Z  dropped at the node" in out, "the hole in the job's rows"
    status, out, _ = run("completeness", tmp_path / "x.hdf5", "--job", "2", "--json", "--host", "node-1")
    assert (json.loads(out)["here"], json.loads(out)["missing"]) == (1020, 1)
    status, out, _ = run("completeness", tmp_path / "x.hdf5", "--until", "2023-11-14T23:00:00Z")
    assert status == 0 and out.startswith("100 % of the samples of all nodes are stored")


def test_without_a_file_it_reads_those_of_the_collectors_configuration(tmp_path, run):
    node = Node()
    node.ticks(30)
    node.lines(tmp_path)
    config = tmp_path / "collector.toml"
    config.write_text(f"hdf5-filepath = '{tmp_path}/x.hdf5'\n")
    status, out, _ = run("completeness", "-j", "2", "--config", config)
    assert status == 0 and "100 % of the samples of job 2 are stored: 30 of 30, 0 missing" in out
    for text, said in (
        ("enable-stdout-backend = true", "no hdf5-filepath; give FILE"),
        (f"hdf5-filepath = '{tmp_path}/y'", f"no file of hdf5-filepath {tmp_path}/y exists; give FILE"),
    ):
        config.write_text(f"{text}\n")
        status, _, err = run("completeness", "--config", config)
        assert status == 2 and said in err


WRITER = """
import sys, time
from colmet.collector.backends.hdf5.output import Hdf5Output
from tests.support.outputs import in_memory, records
from tests.support.made_up_node import Node
output = Hdf5Output(sys.argv[1])
output.open(in_memory())
nodes = [Node(f"node-{n}", ledger_s=20) for n in range(6)]
first = 0
while True:
    for node in nodes:
        node.ticks(5, jobs=range(1, 10))
    batches = [batch for node in nodes for batch in node.arrived]
    output.write(records(batches, first))
    first += len(batches)
    for node in nodes:
        node.arrived.clear()
    time.sleep(0.2)
"""


@pytest.mark.slow
def test_of_a_file_that_is_being_written_nothing_is_said_to_be_missing(tmp_path):
    path = tmp_path / "x.hdf5"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env={**os.environ, "PYTHONPATH": PATHS})
    try:
        until = time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 1 << 18:
            assert writer.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        rows = []
        while len(rows) < 3 or rows[0] == rows[-1]:
            assert time.monotonic() < until
            lines = list(completeness.look(completeness.read([str(path)]), None, None, None))
            assert sum(line.found.missing for line in lines) == 0, lines
            rows.append(sum(line.found.here for line in lines))
        assert rows == sorted(rows)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


def test_the_command_refuses_what_it_cannot_read(tmp_path):
    (tmp_path / "x.hdf5").write_bytes(b"something else")
    with pytest.raises(completeness.ConfigError, match="cannot be read"):
        completeness.read([str(tmp_path / "x.hdf5")])
    with pytest.raises(completeness.ConfigError, match="no such file"):
        completeness.read([str(tmp_path / "none.hdf5")])


@pytest.mark.parametrize("table", [JOBS.name, "completeness_default"])
def test_a_table_of_a_later_version_ends_the_command(tmp_path, table):
    node = Node()
    node.ticks(20)
    node.lines(tmp_path)
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "a") as file:
        file[f"job_{1 if table == JOBS.name else 0}/{table}"].attrs["backend_version"] = 9
    os.utime(path, (START, START))
    with pytest.raises(ConfigError, match="is of a later Colmet"):
        completeness.read([str(path)])


def test_tables_of_others_are_not_counted_wherever_they_are(tmp_path):
    node = Node()
    node.ticks(20)
    before = node.lines(tmp_path)
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "a") as file:
        file["job_1/array"] = np.zeros(3)
        file["job_1/other"] = np.zeros(3, [("timestamp", "i8"), ("nested", [("hostname", "S8")])])
        file["job_1/group/taskstats_default"] = np.zeros(3)
        file["job_7"] = np.zeros(3)
        file["job_9/taskstats_default/x"] = 1
        for attribute in ("text", h5py.Empty("i8"), [1, 2]):
            file["job_1/taskstats_default"].attrs["backend_version"] = attribute
    os.utime(path, (START, START))
    assert node.lines(tmp_path) == before
