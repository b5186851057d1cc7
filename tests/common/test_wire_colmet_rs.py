"""The Rust node's dialect against its messages, and what it skips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from colmet.common.errors import WireError
from colmet.common.wire import Decoded, Decoder, colmet_rs

DATA = Path(__file__).parents[1] / "data" / "colmet_rs"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
MS = 1_700_000_123_456


def meaning(decoded: Decoded) -> list[dict[str, Any]]:
    """What a message says, in the form of expected.json, missing values left out."""
    names = {schema.name: backend for backend, schema in colmet_rs.SCHEMAS.items()}
    return [
        {
            "job_id": sample.job_id,
            "hostname": batch.host,
            "timestamp_ms": table.time_ns / 10**6,
            "backend": names[table.schema.name],
            "values": {name: value for name, value in sample.values.items() if value is not None},
        }
        for batch in decoded.batches
        for table in batch.tables
        for sample in table.samples()
    ]


def pack(job: Any, *entry: Any) -> bytes:
    return msgpack.packb({job: list(entry)})  # type: ignore[no-any-return]


def one(*backends: Any, version: Any = 1) -> Decoded:
    return Decoder().decode(pack(7, "dahu-3", MS, version, list(backends)))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_message_of_the_rust_node_means_what_is_expected_and_nothing_else(name: str) -> None:
    decoded = Decoder().decode((DATA / f"{name}.bin").read_bytes())

    def order(row: dict[str, Any]) -> tuple[int, str]:
        return row["job_id"], row["backend"]

    assert sorted(meaning(decoded), key=order) == sorted(EXPECTED[name], key=order)
    assert (decoded.dialect, decoded.skipped) == ("colmet_rs", 0)
    (batch,) = decoded.batches
    first = EXPECTED[name][0]
    assert (batch.host, batch.epoch, batch.seq) == (first["hostname"], None, None)
    assert batch.time_ns == first["timestamp_ms"] * 10**6
    assert batch.jobs is not None and set(batch.jobs) == {row["job_id"] for row in EXPECTED[name]}


def test_the_table_of_metric_ids_is_the_rust_nodes() -> None:
    table = json.loads((DATA / "metric-ids-v1.json").read_text())
    assert list(colmet_rs.NAMES[table["version"]]) == table["names"]
    assert sorted(colmet_rs.NAMES) == [1]


def test_the_first_table_counts_from_one_and_has_the_names_of_swap_behind_all_others() -> None:
    """The ids that src/backends/mod.rs of colmet-rs lists at 2020-02-27; the first 64 are those of 2019-09."""
    ids = {"cache": 1, "rss": 2, "writeback": 7, "pgpgin": 8, "unevictable": 16, "hierarchical_memory_limit": 17}
    ids |= {"total_cache": 18, "total_writeback": 24, "total_pgpgin": 25, "total_unevictable": 33, "nr_periods": 34}
    ids |= {"cpu_cycles": 37, "page_faults": 56, "bpf_output": 64}
    ids |= {"swap": 65, "hierarchical_memsw_limit": 66, "total_swap": 67}
    assert {name: colmet_rs.FIRST_NAMES.index(name) for name in ids} == ids
    assert sorted(colmet_rs.FIRST_NAMES) == ["", *sorted(colmet_rs.NAMES[1])]


def test_every_metric_id_is_a_field_of_one_schema() -> None:
    fields = [name for schema in colmet_rs.SCHEMAS.values() for name in schema.names]
    assert fields == list(colmet_rs.NAMES[1])


def test_ids_are_integers_decimal_strings_or_bytes() -> None:
    decoded = one([7, "memory", [0, "1", b"10"], [5, 6, 7]])
    assert meaning(decoded)[0]["values"] == {"cache": 5, "rss": 6, "pgfault": 7}
    assert decoded.skipped == 0


def test_host_and_backend_may_be_bytes() -> None:
    decoded = Decoder().decode(pack(7, b"dahu-3", MS, 1, [[7, b"cpu", [36], [5]]]))
    assert meaning(decoded)[0]["values"] == {"nr_periods": 5}


@pytest.mark.parametrize(("ids", "name"), [([36], "throttled_time"), ([36, 0], "nr_periods")])
def test_the_oldest_entries_have_neither_version_nor_inner_job(ids: list[int], name: str) -> None:
    """An id 0 is of the table of version 1, which nodes of one day had without saying so."""
    decoded = Decoder().decode(pack(7, "dahu-3", MS, [["Cpu", ids, [5] * len(ids)]]))
    assert meaning(decoded) == [
        {"job_id": 7, "hostname": "dahu-3", "timestamp_ms": MS, "backend": "cpu", "values": {name: 5}}
    ]


@pytest.mark.parametrize("name", ["memory", "Memory", b"MEMORY"])
def test_capitals_in_the_name_of_a_backend_do_not_count(name: Any) -> None:
    decoded = one([7, name, [0], [2]], [name, [1], [3]])
    assert (meaning(decoded)[0]["values"], decoded.skipped) == ({"cache": 2, "rss": 3}, 0)


def test_metrics_may_be_sent_by_name() -> None:
    decoded = one([7, "Memory", ["rss", b"total_cache", "cpu_cycles", "zswap"], [1, 2, 3, 4]])
    assert (meaning(decoded)[0]["values"], decoded.skipped) == ({"rss": 1, "total_cache": 2}, 2)


@pytest.mark.parametrize("unknown", [67, 65535, 10**12, -1, "67", "999999", "\u0663", "zswap", ""])
def test_an_unknown_id_is_skipped_and_counted(unknown: Any) -> None:
    decoded = one([7, "memory", [unknown, 0], [1, 2]])
    assert (meaning(decoded)[0]["values"], decoded.skipped) == ({"cache": 2}, 1)


def test_an_id_of_another_backend_is_skipped_and_counted() -> None:
    decoded = one([7, "cpu", [0, 36], [1, 2]])
    assert (meaning(decoded)[0]["values"], decoded.skipped) == ({"nr_periods": 2}, 1)


@pytest.mark.parametrize("name", ["gpu", "", b"\xff", None, 5])
def test_an_unknown_backend_is_skipped_and_its_values_counted(name: Any) -> None:
    decoded = one([7, name, [0, 1, 2], [1.5, None, "x"]], [7, "memory", [0], [2]])
    assert (meaning(decoded)[0]["values"], decoded.skipped) == ({"cache": 2}, 3)


@pytest.mark.parametrize("version", [0, 2, 2**40])
def test_an_unknown_version_of_the_table_is_skipped_and_counted(version: int) -> None:
    decoded = one([7, "memory", [0, 1], [5, 6]], version=version)
    assert (decoded.batches[0].tables, decoded.batches[0].jobs, decoded.skipped) == ((), (7,), 2)


def test_a_job_without_values_is_still_a_job_of_its_node() -> None:
    assert [(b.jobs, b.tables) for b in one().batches] == [((7,), ())]
    assert one([7, "memory", [], []]).batches[0].tables == ()


def test_a_message_without_jobs_has_no_batches() -> None:
    assert Decoder().decode(b"\x80") == Decoded("colmet_rs", (), 0)


def test_a_backend_sent_twice_is_one_row_of_its_job() -> None:
    decoded = one([7, "memory", [0, 1], [5, 6]], [7, "memory", [1, 2], [7, 8]])
    assert [row["values"] for row in meaning(decoded)] == [{"cache": 5, "rss": 7, "rss_huge": 8}]


def test_several_hosts_and_times_in_one_message_make_a_batch_each() -> None:
    message = msgpack.packb(
        {
            job: [host, ms, 1, [[job, "cpu", [36], [job]]]]
            for job, host, ms in ((1, "a", 5), (2, "a", 5), (3, "b", 5), (4, "a", 6))
        }
    )
    batches = Decoder().decode(message).batches
    assert [(b.host, b.time_ns, b.jobs) for b in batches] == [
        ("a", 5_000_000, (1, 2)),
        ("b", 5_000_000, (3,)),
        ("a", 6_000_000, (4,)),
    ]
    assert [b.tables[0].rows["nr_periods"].tolist() for b in batches] == [[1, 2], [3], [4]]


ENTRY: tuple[Any, ...] = ("h", MS, 1, [])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pack(-1, *ENTRY), "job id"),
        (pack(True, *ENTRY), "job id"),
        (pack(2**63, *ENTRY), "job id"),
        (pack(None, *ENTRY), "job id"),
        (pack(7, "h", MS), "entry is not"),
        (pack(7, "h", MS, 1, [], 5), "entry is not"),
        (pack(7, "a b", MS, 1, []), "not a host name"),
        (pack(7, 5, MS, 1, []), "not a host name"),
        (pack(7, "h", -5, 1, []), "milliseconds"),
        (pack(7, "h", 1.5, 1, []), "milliseconds"),
        (pack(7, "h", True, 1, []), "milliseconds"),
        (pack(7, "h", 2**62, 1, []), "is not a time"),
        (pack(7, "h", MS, "1", []), "version"),
        (pack(7, "h", MS, 1, {}), "not a whole message"),
        (pack(7, "h", MS, 1, [5]), "not a whole message"),
        (pack(7, "h", MS, 1, [[7, "cpu"]]), "backend is not"),
        (pack(7, "h", MS, 1, [[8, "cpu", [], []]]), "job 7 holds values of job 8"),
        (pack(7, "h", MS, 1, [[7, "cpu", [36], []]]), "one length"),
        (pack(7, "h", MS, 1, [[7, "cpu", 36, 5]]), "not a whole message"),
        (pack(7, "h", MS, 1, [[7, "cpu", [1.0], [5]]]), "not a metric id"),
        (pack(7, "h", MS, 1, [[7, "cpu", [None], [5]]]), "not a metric id"),
        (pack(7, "h", MS, 1, [[7, "cpu", [36], ["5"]]]), "64-bit"),
        (pack(7, "h", MS, 1, [[7, "cpu", [36], [2**63]]]), "64-bit"),
        (pack(7, "h", MS, 1, [[7, "cpu", [36], [float("nan")]]]), "64-bit"),
        (pack(7, "h", MS, 1, [[7, "cpu", [36], [True]]]), "64-bit"),
        (pack(7, "h", MS, 1, [[7, "cpu", [36] * 65537, [5] * 65537]]), "65537 ids or values, more than"),
        (pack(7, "h", MS, 1, [[7, "gpu", [36] * 65537, [5] * 65537]]), "65537 ids, more than"),
        (b"\x82" + pack(7, *ENTRY)[1:] * 2, "job 7 twice"),
        (pack(7, *ENTRY) + b"\0", "bytes after"),
        (pack(7, *ENTRY)[:-1], "not a whole message"),
    ],
)
def test_a_damaged_message_is_refused_whole_and_says_why(message: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        Decoder().decode(message)
