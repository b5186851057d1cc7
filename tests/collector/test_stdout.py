from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path

import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.stdout import StdoutOutput
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import Decoder
from colmet.node.backends import ipmipower, taskstats
from tests.support.outputs import in_memory, records, write

JOB = Schema(
    "job_default",
    "job",
    [Field("cpu", "nsec", "counter"), Field("n", "count", "counter"), Field("model", "none", "label", dtype="S8")],
)
NODE = Schema("node_default", "node", [Field("load", "none", "gauge", dtype="f4")])
TIME = 1_700_000_005 * 10**9 + 999


def batch(jobs=(7, 9)):
    rows = [Sample(7, {"cpu": 5, "n": None, "model": b"\xc3\xa9x"}), Sample(9, {"cpu": 6, "n": 0})]
    tables = (Table.from_samples(JOB, TIME, rows), Table.from_samples(NODE, TIME, [Sample(0, {"load": 0.44})]))
    return Batch("node-1", 1, 1, TIME, jobs, tables)


def written(form, *batches):
    read, fd = os.pipe()
    output = StdoutOutput(form, fd)
    write(output, batches)
    os.close(fd)
    with os.fdopen(read) as file:
        return file.read()


def test_json_is_one_object_a_line_without_missing_values():
    lines = [json.loads(line) for line in written("json", batch()).splitlines()]
    common = {"timestamp": 1_700_000_005, "hostname": "node-1"}
    assert lines == [
        {**common, "job_id": 7, "metric_backend": "job_default", "cpu": 5, "model": "éx"},
        {**common, "job_id": 9, "metric_backend": "job_default", "cpu": 6, "n": 0},
        {**common, "job_id": 0, "metric_backend": "node_default", "involved_jobs": [7, 9], "load": 0.44},
    ]
    assert "involved_jobs" not in written("json", batch(jobs=None))


def test_the_text_form_names_host_job_table_values_and_units():
    text = written("text", batch())
    assert "2023-11-14T22:13:25Z node-1 job 7 job_default\n" in text
    assert "2023-11-14T22:13:25Z node-1 node node_default\n" in text
    assert [line.split() for line in text.splitlines() if " cpu " in line] == [
        ["cpu", "5", "nsec"],
        ["cpu", "6", "nsec"],
    ]
    assert [line.split() for line in text.splitlines() if " n " in line] == [["n", "0"]]
    assert ["load", "0.44"] in [line.split() for line in text.splitlines()]


def test_csv_is_a_line_for_each_value_that_is_there():
    lines = list(csv.DictReader(written("csv", batch()).splitlines()))
    common = {"timestamp": "1700000005", "hostname": "node-1"}
    job = {**common, "metric_backend": "job_default"}
    assert lines == [
        {**job, "job_id": "7", "metric": "cpu", "value": "5", "unit": "nsec"},
        {**job, "job_id": "7", "metric": "model", "value": "éx", "unit": "none"},
        {**job, "job_id": "9", "metric": "cpu", "value": "6", "unit": "nsec"},
        {**job, "job_id": "9", "metric": "n", "value": "0", "unit": "count"},
        {**common, "metric_backend": "node_default", "job_id": "0", "metric": "load", "value": "0.44", "unit": "none"},
    ]


@pytest.fixture
def utc(monkeypatch):
    """0.6 printed local times."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


DATA06 = Path(__file__).parents[1] / "data/colmet06"


@pytest.mark.parametrize("name", ["stdout/every", "frames/mixed"])
def test_the_form_of_06_is_what_06_printed(utc, name):
    """Line by line, but that rows of a table stay together, as real nodes send them."""
    batches = Decoder().decode((DATA06 / f"{name}.bin").read_bytes()).batches
    rows = written("colmet06", *batches).split("}\n")
    expected = (DATA06 / f"stdout/{Path(name).name}.txt").read_text().split("}\n")
    assert sorted(rows) == sorted(expected) and len(rows) > 7
    assert rows == expected or name == "frames/mixed"


def test_the_form_of_06_leaves_out_what_it_had_not_and_has_minus_one_for_what_is_missing(utc):
    values = {"cpu_count": 5, "cpu_total": 7, "ac_btime": 2**62}
    table = Table.from_samples(taskstats.SCHEMA, TIME, [Sample(7, values), Sample(8, {"ac_etime": None})])
    first, second, end = written("colmet06", batch()._replace(tables=(*batch().tables, table))).split("}\n")
    assert "                cpu_count : 5 (count)\n" in first and "cpu_total" not in first
    assert f"                 ac_btime : {2**62}\n" in first and "                 ac_etime : -1u (seconds)\n" in second
    assert "ac_btime : 01/01/1970 - 00:00:00\n" in second and second.startswith("1700000005  Job(8)/ ") and end == ""
    node = Table.from_samples(ipmipower.SCHEMA, TIME, [Sample(0, {})])
    for jobs, text in ((None, ""), ((), "[]"), ((7, 9), "[7, 9]")):
        (row, _) = written("colmet06", batch(jobs)._replace(tables=(node,))).split("}\n")
        assert row.splitlines()[1:] == [
            "\taverage_power_consumption : -1 (count)",
            f"\t            involved_jobs : {text}",
        ]


def test_what_a_label_says_cannot_break_the_csv():
    table = Table.from_samples(JOB, TIME, [Sample(7, {"model": b'a,"\n=1'})])
    (line,) = csv.DictReader(written("csv", batch()._replace(tables=(table,))).splitlines())
    assert line["value"] == 'a,"\\n=1'


def test_a_reader_that_has_gone_makes_it_unavailable_and_says_so():
    read, fd = os.pipe()
    os.close(read)
    with pytest.raises(OutputUnavailable, match="reader has ended"):
        write(StdoutOutput("json", fd), [batch()])
    os.close(fd)


def test_rows_are_printed_once_while_their_position_cannot_be_saved(monkeypatch):
    read, fd = os.pipe()
    output, state = StdoutOutput("json", fd), in_memory()
    output.open(state)
    monkeypatch.setattr(state, "save", lambda *_: (_ for _ in ()).throw(OutputUnavailable("no space")))
    for _ in range(3):
        with pytest.raises(OutputUnavailable):
            output.write(records([batch()]))
    monkeypatch.undo()
    output.write(records([batch()]))
    output.close()
    os.close(fd)
    with os.fdopen(read) as file:
        assert len(file.readlines()) == 3 and state.position == 1


@pytest.mark.slow
def test_rows_cut_off_in_the_middle_are_completed_not_repeated():
    read, fd = os.pipe()
    os.set_blocking(fd, False)
    output = StdoutOutput("json", fd)
    state = in_memory()
    output.open(state)
    all_records = records([batch() for _ in range(401)])  # more than a pipe holds
    text, retries = b"", 0
    while state.position < 401:
        try:
            output.write(all_records[state.position :])
        except OutputUnavailable:
            retries += 1
            text += os.read(read, 1 << 20)
    os.set_blocking(fd, True)
    output.close()
    os.close(fd)
    with os.fdopen(read, "rb") as file:
        text += file.read()
    assert retries
    assert len([json.loads(line) for line in text.splitlines()]) == 3 * 401


@pytest.mark.slow
@pytest.mark.parametrize("reads_again", [False, True])
def test_a_record_that_is_cut_off_is_not_taken_for_written(reads_again, caplog):
    read, fd = os.pipe()
    os.set_blocking(fd, False)
    output = StdoutOutput("json", fd)
    state = in_memory()
    output.open(state)
    all_records = [JournalRecord(n, 1, (batch(),) * 50) for n in range(40)]  # more than a pipe holds
    with pytest.raises(OutputUnavailable):
        output.write(all_records)
    text = os.read(read, 1 << 20) if reads_again else b""
    position = state.position
    assert output._rest, "it is in the middle of one"
    output.close()
    os.close(fd)
    with os.fdopen(read, "rb") as file:
        text += file.read()
    if reads_again:
        assert len([json.loads(line) for line in text.splitlines()]) == 150 * state.position == 150 * (position + 1)
    else:
        assert text.count(b"\n") < 150 * (position + 1) and state.position == position, "the next start writes it"
        assert "cut off" in caplog.text


def test_a_closed_standard_output_is_refused_at_start():
    read, fd = os.pipe()
    os.close(read)
    os.close(fd)
    with pytest.raises(ConfigError, match="standard output is closed"):
        StdoutOutput("json", fd).open(in_memory())
