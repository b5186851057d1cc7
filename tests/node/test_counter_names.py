"""What numbered columns hold: the table, and the files of Colmet 0.6."""

from __future__ import annotations

import os
import threading

import pytest

from colmet.common.schema import Field, Schema
from colmet.node.counter_names import PERIOD_S, SCHEMA, CounterName, CounterNames
from tests.support.waiting import Clock

RAPL = Schema("RAPLstats_default", "node", [Field("counter_1", "count", "gauge")])
PERF = Schema("perfhwstats_default", "job", [Field("counter_1", "count", "gauge")])


class FakeBackend:
    def __init__(self, schema, names, file=None):
        self.schema, self.names, self.file = schema, names, file

    def counter_names(self):
        return self.names

    def mapping_file(self):
        return self.file


def rapl():
    names = [CounterName("counter_1", "package-0", "ujoules", "package"), CounterName("counter_2", "core-0", "ujoules")]
    return FakeBackend(RAPL, names, ("RAPL", ["counter_1,energy_microjoule,package-0,zone_package", "counter_2,x,y,z"]))


def rows(tables):
    return [tuple(value or b"" for value in sample.values.values()) for table in tables for sample in table.samples()]


def test_the_table_comes_at_the_start_on_change_and_hourly(fake):
    clock = Clock(0.0)
    names = CounterNames(fake.host, "", clock)
    assert names.tables(5, []) == []
    backend, unnamed = rapl(), FakeBackend(PERF, [])
    (table,) = names.tables(7, [unnamed, backend])
    assert (table.schema, table.time_ns) == (SCHEMA, 7)
    assert rows([table]) == [
        (b"RAPLstats_default", b"counter_1", b"package-0", b"ujoules", b"package"),
        (b"RAPLstats_default", b"counter_2", b"core-0", b"ujoules", b""),
    ]
    assert set(table.rows["job_id"]) == {0}
    assert names.tables(8, [unnamed, backend]) == []
    clock.now = PERIOD_S - 1
    assert names.tables(9, [backend]) == []
    clock.now = PERIOD_S
    assert len(rows(names.tables(10, []))) == 2, "what is closed for now is still there"
    assert names.tables(11, [backend]) == []
    unnamed.names = [CounterName("counter_1", "page_faults", "count")]
    assert len(rows(names.tables(12, [unnamed, backend]))) == 3
    backend.names = backend.names[:1]
    assert len(rows(names.tables(13, [unnamed, backend]))) == 2


def files(fake):
    for thread in threading.enumerate():
        if thread.name == "colmet-mapping":
            thread.join(20)
    return {path.name: path.read_text() for path in fake.path.glob("maps/*")}


def test_a_file_is_written_as_06_did_at_each_start_and_when_a_name_changes(fake):
    fake.mkdir("maps")
    backend = rapl()
    text = "counter_1,energy_microjoule,package-0,zone_package\ncounter_2,x,y,z\n"
    for start in (1_700_000_000, 1_700_000_100):
        names = CounterNames(fake.host, "/maps")
        names.tables(start * 10**9 + 500_000_000, [backend])
    names.join(20)
    names.tables(1_700_000_105 * 10**9, [backend])
    assert files(fake) == {"RAPL_mapping.1700000000.csv": text, "RAPL_mapping.1700000100.csv": text}
    backend.names = backend.names[:1]
    backend.file = ("RAPL", ["counter_1,third"])
    names.tables(1_700_000_300 * 10**9, [backend])
    assert files(fake)["RAPL_mapping.1700000300.csv"] == "counter_1,third\n" and len(files(fake)) == 3
    assert os.stat(fake.path / "maps/RAPL_mapping.1700000300.csv").st_mode & 0o777 == 0o644


def test_a_backend_that_cannot_measure_has_a_file_and_no_names(fake):
    fake.mkdir("maps")
    names = CounterNames(fake.host, "/maps")
    for tick in (7, 8):
        assert names.tables(tick * 10**9, [], [FakeBackend(PERF, [], ("perfhw", ["counter1,no_counter"]))]) == []
        names.join(20)
    assert files(fake) == {"perfhw_mapping.7.csv": "counter1,no_counter\n"}


def test_none_is_written_where_none_is_wanted(fake):
    assert CounterNames(fake.host, "").tables(1, [rapl()])
    assert list(fake.path.iterdir()) == []


@pytest.mark.parametrize("trap", ["missing", "link", "there"])
def test_a_file_that_cannot_be_written_is_reported_with_the_remedy_and_the_table_comes_all_the_same(fake, caplog, trap):
    if trap != "missing":
        fake.mkdir("maps")
    if trap == "link":  # an attacker's, in a working directory that is open to all
        (fake.path / "maps/RAPL_mapping.1.csv").symlink_to(fake.path / "victim")
    if trap == "there":
        fake.write("maps/RAPL_mapping.1.csv", "")
    names = CounterNames(fake.host, "/maps")
    assert names.tables(10**9, [rapl()])
    names.join(20)
    assert names.failures == 1 and "--mapping-dir" in caplog.text
    assert not (fake.path / "victim").exists()


def test_a_directory_that_does_not_answer_keeps_nobody_waiting(fake, monkeypatch):
    fake.mkdir("maps")
    answers, asked = threading.Event(), []

    def write_new(path, data):
        asked.append(path)
        assert answers.wait(20)

    monkeypatch.setattr(fake.host, "write_new", write_new)
    backend = rapl()
    names = CounterNames(fake.host, "/maps")
    for n in range(1, 4):
        backend.names = backend.names + backend.names[:1]
        backend.file = ("RAPL", [f"line {n}"])
        assert names.tables(n * 10**9, [backend])
    assert len(asked) <= 1, "one at a time"
    answers.set()
    names.join(20)
    assert names.tables(9 * 10**9, [backend]) == []
    names.join(20)
    assert asked == ["/maps/RAPL_mapping.1.csv", "/maps/RAPL_mapping.3.csv"], "what was said last counts"
