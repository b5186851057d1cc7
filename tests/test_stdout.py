from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from colmet.collector.backends.stdout import StdoutOutput
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import Decoder

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
    read, write = os.pipe()
    output = StdoutOutput(form, write)
    output.open()
    output.write(batches)
    output.close()
    os.close(write)
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


def test_the_readable_form_names_host_job_table_values_and_units():
    text = written("readable", batch())
    assert "2023-11-14T22:13:25Z node-1 job 7 job_default\n" in text
    assert "2023-11-14T22:13:25Z node-1 node node_default\n" in text
    assert [line.split() for line in text.splitlines() if " cpu " in line] == [
        ["cpu", "5", "nsec"],
        ["cpu", "6", "nsec"],
    ]
    assert [line.split() for line in text.splitlines() if " n " in line] == [["n", "0"]]
    assert ["load", "0.44"] in [line.split() for line in text.splitlines()]


def test_every_frame_of_colmet_06_can_be_printed():
    for path in sorted((Path(__file__).parent / "data/colmet06/frames").glob("*.bin")):
        batches = Decoder().decode(path.read_bytes()).batches
        expected = json.loads(path.with_suffix(".json").read_text())
        lines = [json.loads(line) for line in written("json", *batches).splitlines()]
        assert len(lines) == len(expected)
        for record in expected:
            (line,) = [
                one
                for one in lines
                if (one["metric_backend"], one["job_id"]) == (record["metric_backend"], record["job_id"])
            ]
            for name, value in record["values"].items():
                if name != "involved_jobs":
                    assert line.get(name, -1) == value


def test_a_reader_that_has_gone_makes_it_unavailable_and_says_so():
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(OutputUnavailable, match="reader has ended"):
        StdoutOutput("json", write).write([batch()])
    os.close(write)


def test_rows_cut_off_in_the_middle_are_completed_not_repeated():
    read, write = os.pipe()
    os.set_blocking(write, False)
    output = StdoutOutput("json", write)
    many = [batch() for _ in range(400)]  # more than a pipe holds
    output.write(many)
    text, retries = os.read(read, 1 << 20), 0
    while True:
        try:
            output.write([batch()])
            break
        except OutputUnavailable:
            retries += 1
            text += os.read(read, 1 << 20)
    os.set_blocking(write, True)
    output.close()
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text += file.read()
    assert retries
    assert len([json.loads(line) for line in text.splitlines()]) == 3 * 401


def test_a_closed_standard_output_is_refused_at_start():
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(ConfigError, match="standard output is closed"):
        StdoutOutput("json", write).open()
