"""Which record of the batch system belongs to which measured run, and what a job number that is used again becomes."""

from __future__ import annotations

import random

from colmet.batch.systems import CANCELLED, DONE, RUNNING, JobRecord
from colmet.jobs.archive import matching
from colmet.jobs.archive.matching import NAMES, columns_of, plan
from colmet.jobs.columns import BATCH


def record(started, ended=None, state=None, batch_id="7", **fields):
    state = state or (RUNNING if ended is None else DONE)
    return columns_of(JobRecord(7, "slurm", batch_id, state, started, ended, **fields))


def run(start, last, of=None):
    """A summary with rows."""
    return {**dict.fromkeys(NAMES), **(of or {}), "start": start, "last": last}


def after(rows, *batches):
    """The summaries of one number after some answers, each joined to what those before have left."""
    rows = {row["start"]: dict(row) for row in rows}
    for records in batches:
        change = plan(list(rows.values()), records)
        for start in change.deletes:
            del rows[start]
        for start, columns in change.updates:
            rows[start].update({name: columns.get(name) for name in NAMES})
        for row in change.inserts:
            assert row["start"] not in rows
            rows[row["start"]] = {**dict.fromkeys(NAMES), "last": None, **row}
        assert not any(plan(list(rows.values()), records)), "a repeated answer changes nothing"
    return rows


def seen(rows):
    return {start: (row["state"], row["started"], row["ended"]) for start, row in sorted(rows.items())}


def test_tasks_of_an_array_are_not_each_compared_with_all_others(monkeypatch):
    asked = []
    same = matching._is_same
    monkeypatch.setattr(matching, "_is_same", lambda *both: asked.append(both) or same(*both))
    records = [record(100 + n, 200 + n, batch_id=f"7_{n}") for n in range(2000)]
    assert len(plan([], records).inserts) == 2000 and len(asked) < 10 * 2000


def test_the_fields_of_a_record_are_the_columns_of_the_archive():
    assert set(JobRecord._fields) == {"job", *(column.name for column in BATCH)}


def test_a_running_job_gets_its_record_and_later_its_end():
    rows = after([run(102, 160)], [record(100, name="sleep")])
    assert seen(rows) == {102: ("running", 100, None)}
    rows = after(rows.values(), [record(100, 165, exit_code=0)])
    assert seen(rows) == {102: ("done", 100, 165)} and rows[102]["name"] == "sleep"
    assert seen(after(rows.values(), [record(100)])) == {102: ("done", 100, 165)}, "an older answer that came late"


def test_a_number_that_is_used_again_is_distinguished_by_the_start():
    """30 runs with one number: 50 s each, 20 s apart, as after requeues; the records come in any order."""
    draw = random.Random(4)
    runs = [run(1000 + 70 * n, 1050 + 70 * n) for n in range(30)]
    records = [record(998 + 70 * n, 1052 + 70 * n, CANCELLED if n % 2 else DONE) for n in range(30)]
    for _ in range(20):
        draw.shuffle(records)
        cut = draw.randrange(30)
        rows = after(runs, records[:cut], records[cut:])
        assert seen(rows) == {
            1000 + 70 * n: ("cancelled" if n % 2 else "done", 998 + 70 * n, 1052 + 70 * n) for n in range(30)
        }


def test_a_number_that_is_used_again_years_later_does_not_touch_the_first_job():
    rows = after([run(1000, 2000)], [record(9_000_000, 9_000_100)])
    assert seen(rows) == {1000: (None, None, None), 9_000_000: ("done", 9_000_000, 9_000_100)}


def test_a_run_that_went_on_without_accounts_leaves_the_one_before_ended():
    rows = after([run(100, 200)], [record(98)], [record(260)])
    assert seen(rows) == {100: (None, 98, None)}, "no rows of the second one yet"
    rows = after([*rows.values(), run(262, 300)], [record(260)])
    assert seen(rows) == {100: (None, 98, None), 262: ("running", 260, None)}


def test_a_record_that_was_joined_to_a_neighbour_moves_once_its_own_rows_come():
    rows = after([run(100, 200)], [record(260)])
    assert seen(rows) == {100: ("running", 260, None)}
    rows = after([*rows.values(), run(262, 300)], [record(260)])
    assert seen(rows) == {100: (None, None, None), 262: ("running", 260, None)}


def test_a_job_without_rows_has_a_summary_once_it_has_ended_and_rows_that_come_later_join_it():
    assert after([], [record(100)]) == {}
    rows = after([], [record(100, 101)])
    assert seen(rows) == {100: ("done", 100, 101)} and rows[100]["last"] is None
    rows = after([*rows.values(), run(101, 101)], [])
    assert seen(rows) == {101: ("done", 100, 101)} and rows[101]["last"] == 101


def test_tasks_with_one_number_that_start_together_have_a_summary_each():
    tasks = [record(100, 105 + n, batch_id=f"7.{n}") for n in range(30)]
    rows = after([], tasks[:10], tasks)
    assert sorted(row["batch_id"] for row in rows.values()) == sorted(one["batch_id"] for one in tasks)
    assert {row["started"] for row in rows.values()} == {100} and set(rows) == set(range(100, 130))


def test_a_start_that_the_batch_system_corrects_is_the_same_run():
    assert seen(after([run(103, 110)], [record(100)], [record(102, 111)])) == {103: ("done", 102, 111)}
    short = [record(100 + 2 * n, 101 + 2 * n) for n in range(5)]
    assert len(after([], short)) == 5, "runs of a second each are not one"


def test_clocks_may_differ_by_a_minute():
    assert seen(after([run(200, 210)], [record(130, 140)])) == {200: ("done", 130, 140)}
    assert len(after([run(400, 410)], [record(130, 140)])) == 2


def test_a_record_begun_before_its_start_and_the_whole_one_are_one_run():
    """As slurmdbd keeps of some array tasks: the number, the name "allocation" and times alone."""
    fragment = record(100, 103, batch_id="7", name="allocation", owner="alice", submitted=90)
    whole = record(100, 103, batch_id="5_2", name="sim", owner="alice", submitted=90, array="5", allocated_cores=1)
    running = record(100, batch_id="5_2", name="sim", owner="alice", submitted=90, array="5", allocated_cores=1)
    for records in ([fragment], [whole]), ([whole], [fragment]), ([fragment, whole],), ([running], [fragment, whole]):
        for rows in ([], [run(101, 103)]):
            (found,) = after(rows, *records).values()
            assert (found["name"], found["batch_id"], found["allocated_cores"]) == ("sim", "5_2", 1), records
            assert (found["state"], found["ended"]) == (DONE, 103)


def test_two_records_of_one_number_that_overlap_are_one_run_and_requeues_are_not():
    first = record(100, 200, allocated_cores=1)
    assert len(after([], [first, record(150, 200, allocated_cores=1)])) == 1
    assert len(after([], [first, record(200, 300, allocated_cores=1), record(301, 310, allocated_cores=1)])) == 3


def test_summaries_of_one_run_that_are_there_become_one():
    whole = dict(record(100, 103, batch_id="5_2", name="sim", array="5", allocated_cores=1))
    fragment = dict(record(100, 103, batch_id="7", name="allocation"))
    rows = [run(101, 103, fragment), {**whole, "start": 100, "last": None}]
    found = after(rows, [])
    assert list(found) == [101] and (found[101]["name"], found[101]["array"]) == ("sim", "5")
