"""Colmet 0.6's dialect against messages that 0.6.10 packed and its own list of metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colmet.common.errors import WireError
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import Decoder, colmet06

DATA = Path(__file__).parents[1] / "data" / "colmet06"
FRAMES = sorted((DATA / "frames").glob("*.bin"), key=lambda path: path.name)
METRICS: dict[str, Any] = json.loads((DATA / "metrics.json").read_text())
TYPES = {"UInt64": "u8", "UInt32": "u4", "Int64": "i8", "UFloat": "f4"}
UNITS_06 = {"none": "n/a"}  # our unit -> what 0.6 calls it, where they differ


def read_frame(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    return path.read_bytes(), json.loads(path.with_suffix(".json").read_text())


def batch_of(*tables: Table, host: str = "dahu-7", jobs: tuple[int, ...] | None = None) -> Batch:
    return Batch(host, 1, 1, tables[0].time_ns, jobs, tables)


def table_of(name: str, *samples: Sample, time_s: int = 1_700_000_000) -> Table:
    return Table.from_samples(colmet06.RECORDS[name].schema, time_s * 10**9, samples)


def raw_record(name: str, job: int = 5, time_s: int = 1_700_000_000, host: bytes = b"dahu-7", **values: Any) -> bytes:
    packed = np.zeros(1, dtype=colmet06.RECORDS[name].dtype)
    packed["metric"], packed["host"], packed["job_id"], packed["time"] = name.encode(), host, job, time_s
    for counter, value in values.items():
        packed[counter] = value
    return packed.tobytes()


def rows_of(batches: tuple[Batch, ...]) -> list[dict[str, Any]]:
    """What a decoded message says, in the form of the JSON beside each frame but for involved_jobs."""
    return [
        {
            "metric_backend": table.schema.name,
            "hostname": batch.host,
            "job_id": sample.job_id,
            "timestamp": table.time_ns / 10**9,
            "values": dict(sample.values),
        }
        for batch in batches
        for table in batch.tables
        for sample in table.samples()
    ]


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_frame_of_06_means_what_the_json_beside_it_says(path: Path) -> None:
    message, records = read_frame(path)
    decoded = Decoder().decode(message)
    assert (decoded.dialect, decoded.skipped, len(decoded.batches)) == ("colmet06", 0, 1)
    expected = []
    for record in records:
        values = {n: None if v == -1 else v for n, v in record["values"].items() if n != "involved_jobs"}
        expected.append({**record, "values": values})

    def order(row: dict[str, Any]) -> tuple[str, int]:
        return row["metric_backend"], row["job_id"]

    assert sorted(rows_of(decoded.batches), key=order) == sorted(expected, key=order)
    batch = decoded.batches[0]
    assert (batch.epoch, batch.seq) == (None, None)
    assert batch.time_ns == records[0]["timestamp"] * 10**9


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_the_involved_jobs_of_a_frame_become_the_jobs_of_the_batch(path: Path) -> None:
    message, records = read_frame(path)
    lists = [json.loads(r["values"]["involved_jobs"]) for r in records if "involved_jobs" in r["values"]]
    assert colmet06.decode(message)[0].jobs == (tuple(lists[0]) if lists else None)


def test_each_table_keeps_its_own_list_of_jobs() -> None:
    """A job ends between the readings of two backends of 0.6."""
    lists = {"procstats_default": b"[5, 6]", "ipmipowerstats_default": b"[6]", "lustrestats_default": b"[5, 6]"}
    message = raw_record("taskstats_default") + b"".join(
        [raw_record(name, job=0, involved_jobs=text) for name, text in lists.items()]
    )
    batches = [(batch.jobs, [table.schema.name for table in batch.tables]) for batch in colmet06.decode(message)]
    assert batches == [
        ((5, 6), ["taskstats_default", "procstats_default", "lustrestats_default"]),
        ((6,), ["ipmipowerstats_default"]),
    ]


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_frame_of_06_is_encoded_to_the_same_bytes(path: Path) -> None:
    message, _ = read_frame(path)
    assert colmet06.encode(colmet06.decode(message)[0]) == message


def test_a_shuffled_message_is_encoded_with_its_jobs_together() -> None:
    batch = batch_of(
        table_of("taskstats_default", Sample(1, {"cpu_count": 1}), Sample(2, {"cpu_count": 2})),
        table_of("jobprocstats_default", Sample(2, {"rchar": 3}), Sample(1, {"rchar": 4})),
    )
    message = colmet06.encode(batch)
    headers = []
    while message:
        name = message[:255].rstrip(b"\0").decode()
        headers.append((name, int.from_bytes(message[510:518], "little")))
        message = message[METRICS[name]["frame_bytes"] :]
    names = ("taskstats_default", "jobprocstats_default")
    assert headers == [(name, job) for job in (1, 2) for name in names]


def test_the_records_are_exactly_the_metrics_of_06() -> None:
    assert list(colmet06.RECORDS) == list(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_record_has_the_counters_types_units_offsets_and_size_of_06(name: str) -> None:
    record = colmet06.RECORDS[name]
    fields = [field for field in METRICS[name]["fields"] if field["type"] != "String"]
    strings = [field for field in METRICS[name]["fields"] if field not in fields]
    ours = [(n, w, u, record.dtype.fields[n][1]) for n, w, u in record.counters]  # type: ignore[index]
    assert ours == [(f["name"], TYPES[f["type"]], f["unit"], f["offset"]) for f in fields]
    assert record.dtype.itemsize == METRICS[name]["frame_bytes"]
    assert record.involved_jobs == bool(strings)
    for field in strings:
        assert (field["name"], field["bytes"]) == ("involved_jobs", colmet06.INVOLVED_JOBS_BYTES)
        assert record.dtype.fields["involved_jobs"][1] == field["offset"]  # type: ignore[index]
    assert [UNITS_06.get(f.unit, f.unit) for f in record.schema.fields] == [f["unit"] for f in fields]


def test_a_missing_value_goes_out_as_zero_unsigned_and_as_minus_one_signed() -> None:
    message = colmet06.encode(
        batch_of(table_of("taskstats_default", Sample(3, {})), table_of("jobprocstats_default", Sample(3, {})))
    )
    tasks = np.frombuffer(message, colmet06.RECORDS["taskstats_default"].dtype, 1)
    procs = np.frombuffer(message, colmet06.RECORDS["jobprocstats_default"].dtype, 1, offset=762)
    assert {tasks[n][0] for n, _, _ in colmet06.RECORDS["taskstats_default"].counters} == {0}
    assert {procs[n][0] for n, _, _ in colmet06.RECORDS["jobprocstats_default"].counters} == {-1}


def test_a_missing_load_average_goes_out_as_minus_one_and_comes_back_missing() -> None:
    message = colmet06.encode(batch_of(table_of("procstats_default", Sample(0, {"loadavg_1min": 0.0}))))
    packed = np.frombuffer(message, colmet06.RECORDS["procstats_default"].dtype)
    assert (packed["loadavg_1min"][0], packed["loadavg_5min"][0]) == (0, -1)
    row = next(iter(colmet06.decode(message)[0].tables[0].samples()))
    assert (row.values["loadavg_1min"], row.values["loadavg_5min"]) == (0.0, None)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_a_count_beyond_what_was_ever_counted_is_missing(value: int) -> None:
    message = raw_record("taskstats_default", cpu_count=value, blkio_count=2**63 - 1)
    row = next(iter(colmet06.decode(message)[0].tables[0].samples()))
    assert row.values["cpu_count"] is None
    assert row.values["blkio_count"] == 2**63 - 1


def test_tables_and_fields_that_06_does_not_know_are_left_out() -> None:
    known = table_of("jobprocstats_default", Sample(5, {"rchar": 11, "VmRSS": 12}))
    newer = Schema("jobprocstats_default", "job", [Field("oom_kills", "count", "counter"), *known.schema.fields])
    values = {"oom_kills": 9, "rchar": 11, "VmRSS": 12}
    other = Schema("pressure_default", "node", [Field("some", "usec", "counter")])
    message = colmet06.encode(
        batch_of(
            Table.from_samples(other, known.time_ns, [Sample(0, {"some": 1})]),
            Table.from_samples(newer, known.time_ns, [Sample(5, values)]),
        )
    )
    assert message == colmet06.encode(batch_of(known))
    assert len(message) == METRICS["jobprocstats_default"]["frame_bytes"]


def test_a_batch_of_newer_tables_only_is_an_empty_message() -> None:
    other = Schema("pressure_default", "node", [Field("some", "usec", "counter")])
    assert colmet06.encode(batch_of(Table(other, 1, other.empty_rows(1)))) == b""


@pytest.mark.parametrize("digits", [1, 4, 7, 19])
def test_the_list_of_jobs_stays_json_at_its_limit(digits: int) -> None:
    for count in (0, 1, 300, 400, 800, 1100, 1400, 3000, 5000):
        jobs = tuple([10 ** (digits - 1) + n % 9 for n in range(count)])
        packed = colmet06.pack_jobs(jobs)
        kept = json.loads(packed)
        assert len(packed) <= colmet06.INVOLVED_JOBS_BYTES
        assert tuple(kept) == jobs[: len(kept)]
        if len(kept) < count:  # one more would not have fitted
            assert len(json.dumps(jobs[: len(kept) + 1])) > colmet06.INVOLVED_JOBS_BYTES


def test_the_list_of_jobs_that_fills_its_8192_bytes_comes_back_whole() -> None:
    jobs = (1, 22, *[333] * 1637)  # "[1, 22" + 1637 times ", 333" + "]"
    assert len(colmet06.pack_jobs(jobs)) == 8192
    batch = batch_of(table_of("ipmipowerstats_default", Sample(0, {"average_power_consumption": 5})), jobs=jobs)
    assert colmet06.decode(colmet06.encode(batch))[0].jobs == jobs


@pytest.mark.parametrize(
    ("packed", "jobs"),
    [
        *((packed, None) for packed in (b"", b"[1, 2", b"{}", b"7", b"[" * 8192, b"\xff\xfe[")),
        (b"[]", ()),
        (b'[1, "2", -3, null, 4.5, true, 18446744073709551616, 6]', (1, 6)),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_a_list_of_jobs_that_is_none_does_not_spoil_the_counters(packed: bytes, jobs: tuple[int, ...] | None) -> None:
    message = raw_record("lustrestats_default", job=0, lustre_nb_read=4, involved_jobs=packed)
    batch = colmet06.decode(message)[0]
    assert batch.jobs == jobs
    assert batch.tables[0].rows["lustre_nb_read"].tolist() == [4]


def test_a_job_id_of_8000_digits_is_no_job() -> None:
    message = raw_record("lustrestats_default", job=0, involved_jobs=b"[" + b"9" * 8000 + b"]")
    assert colmet06.decode(message)[0].jobs in (None, ())  # Python since 3.10.7 refuses to read it


def test_several_hosts_and_times_in_one_message_make_a_batch_each() -> None:
    message = b"".join(
        [
            raw_record("perfhwstats_default", 1, 100, b"a", counter_1=1),
            raw_record("perfhwstats_default", 1, 105, b"a", counter_1=2),
            raw_record("perfhwstats_default", 1, 100, b"b", counter_1=3),
            raw_record("perfhwstats_default", 2, 100, b"a", counter_1=4),
            raw_record("ipmipowerstats_default", 0, 105, b"a", involved_jobs=b"[1]"),
        ]
    )
    batches = colmet06.decode(message)
    assert [(b.host, b.time_ns // 10**9, b.jobs) for b in batches] == [
        ("a", 100, None),
        ("a", 105, (1,)),
        ("b", 100, None),
    ]
    assert [[(t.schema.name, t.rows["job_id"].tolist()) for t in b.tables] for b in batches] == [
        [("perfhwstats_default", [1, 2])],
        [("perfhwstats_default", [1]), ("ipmipowerstats_default", [0])],
        [("perfhwstats_default", [1])],
    ]
    assert [b.tables[0].rows["counter_1"].tolist() for b in batches] == [[1, 4], [2], [3]]
    assert all(t.time_ns == b.time_ns for b in batches for t in b.tables)


GOOD = raw_record("taskstats_default")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"taskstats_defaulu" + GOOD[17:], "not a metric of Colmet 0.6"),
        (GOOD[:-1], "cut short"),
        (GOOD[:17], "cut short"),
        (GOOD + b"x", "byte 762"),
        (GOOD + GOOD[:500], "cut short"),
        (raw_record("taskstats_default", host=b""), "not a host name"),
        (raw_record("taskstats_default", host=b"a b"), "not a host name"),
        (raw_record("taskstats_default", host=b"../x"), "not a host name"),
        (raw_record("taskstats_default", host=b"a\0b"), "not a host name"),
        (raw_record("taskstats_default", host=b"\xc3\xa9"), "not a host name"),
        (GOOD[:510] + b"\xff" * 8 + GOOD[518:], "job id"),
        (GOOD[:518] + b"\xff" * 8 + GOOD[526:], "time"),
        (raw_record("taskstats_default", time_s=2**63 // 10**9 + 1), "not in seconds"),
    ],
)
def test_a_damaged_message_is_refused_whole_and_says_why(message: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        Decoder().decode(message)


def test_messages_decoded_together_are_what_each_is_alone() -> None:
    node = raw_record("procstats_default", 0, involved_jobs=b"[5, 6]", uptime_total=7)
    tasks = [raw_record("taskstats_default", job, ac_btime=job, cpu_count=2**64 - job) for job in (5, 6, 7)]
    other = raw_record("taskstats_default", 5, host=b"dahu-8", time_s=1_700_000_001, cpu_count=11)
    messages = [
        node + tasks[0] + raw_record("jobprocstats_default", 5, VmRSS=-1) + tasks[1],
        b"".join(tasks),
        b"".join(tasks)[:-1],
        tasks[0] + other + tasks[1],
        raw_record("taskstats_default", 2**63),
        b"".join(tasks),
        raw_record("taskstats_default", host=b"a b"),
        other,
    ]
    for message, found in zip(messages, colmet06.decode_all(messages)):
        if isinstance(found, WireError):
            with pytest.raises(WireError) as alone:
                colmet06.decode(message)
            assert str(found) == str(alone.value)
        else:
            assert rows_of(found) == rows_of(colmet06.decode(message)) and len(found) == 1 + (other in message[1:])
    assert [isinstance(found, WireError) for found in colmet06.decode_all(messages)].count(True) == 3
    assert colmet06.decode_all([]) == []


def test_a_message_has_a_maximum_of_jobs() -> None:
    records = np.tile(
        np.frombuffer(raw_record("perfhwstats_default"), colmet06.RECORDS["perfhwstats_default"].dtype), 9000
    )
    records["job_id"] = np.arange(9000) % 4096
    assert len(colmet06.decode(records.tobytes())[0].tables[0]) == 9000
    records["job_id"][-1] = 4096
    with pytest.raises(WireError, match="4097 jobs"):
        colmet06.decode(records.tobytes())
