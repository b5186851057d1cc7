"""Ended tasks that their cgroup still lists: none is counted twice, none that has a number again is lost."""

import numpy as np

from colmet.node.accounting import task_states
from colmet.node.accounting.task_states import FinishedTasks


def tasks(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_a_task_is_finished_until_the_tick_and_dying_for_as_long_as_it_is_listed():
    finished = FinishedTasks()
    assert finished.all().tolist() == []
    finished.add(tasks(7, 8))
    finished.add(tasks(9))
    assert finished.all().tolist() == [7, 8, 9]
    finished.forget()  # a tick: 8 is still listed
    finished.note_dying({8})
    assert finished.all().tolist() == [8] and finished.since_last_tick() == []
    finished.forget()
    assert finished.all().tolist() == []


def test_a_number_that_a_live_task_has_again_is_not_finished_any_more():
    finished = FinishedTasks()
    finished.add(tasks(7, 8))
    finished.note_dying({5, 6})
    finished.revive([8, 5])
    assert sorted(finished.all().tolist()) == [6, 7]


def test_only_the_last_tasks_that_ended_are_kept(monkeypatch):
    monkeypatch.setattr(task_states, "MAX_FINISHED", 3)
    finished = FinishedTasks()
    for first in (1, 3, 5):
        finished.add(tasks(first, first + 1))
    assert finished.all().tolist() == [5, 6]
