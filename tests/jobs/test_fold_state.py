"""The packed states of unfinished folds."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.common.measures import TASKS_TABLE
from colmet.jobs.fold_state import FoldState, Head


def whole(state, slots):
    """All numbers of some slots."""
    return np.concatenate([array[slots].reshape(len(slots), -1) for array in state._arrays.values()], axis=1)


@pytest.fixture
def made():
    """A state with two folds, some of whose numbers are empty in both."""
    state = FoldState()
    slots = [state.take(), state.take()]
    rng = np.random.default_rng(3)
    for array in (state.head, state.counters[TASKS_TABLE], state.footprint["cpu_ns"]):
        array[slots] = rng.integers(-1, 1 << 60, array[slots].shape)
    state.head[slots, Head.USER] = state.user("ann"), -1
    state.head[slots, Head.HOST] = 5, 6
    return state, slots


def test_a_packed_fold_has_the_same_numbers_again(made):
    state, slots = made
    other = FoldState()
    other.user("bob")
    packed = list(state.pack(np.array(slots)))
    again = [other.unpack(one, host) for one, host in zip(packed, (5, 6))]
    users = other.head[again, Head.USER].tolist()
    assert [other.users[users[0]], users[1]] == ["ann", -1]
    other.head[again, Head.USER] = state.head[slots, Head.USER]
    assert (whole(other, again) == whole(state, slots)).all()


@pytest.mark.parametrize("damage", [lambda one: one[:-1], lambda one: one[:20], lambda one: b"\x09" + one[1:]])
def test_a_damaged_fold_is_refused_and_uses_no_slot(made, damage):
    state, slots = made
    other = FoldState()
    with pytest.raises(ValueError, match=r"buffer|form|damaged"):
        other.unpack(damage(next(iter(state.pack(np.array(slots))))), 5)
    assert other.count == 0
