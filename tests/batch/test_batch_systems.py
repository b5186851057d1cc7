"""The batch systems by name, and how their commands are asked."""

from __future__ import annotations

import pytest

from colmet.batch import answers
from colmet.batch.answers import AskError, BatchError, Cached, ask, count, json_values, name
from colmet.batch.condor import HTCondor
from colmet.batch.oar import OAR
from colmet.batch.slurm import Slurm
from colmet.batch.systems import find_systems
from colmet.common.errors import ConfigError
from tests.support.batch_commands import Commands


def test_batch_systems_are_found_by_name_each_once_and_in_order():
    found = find_systems(["slurm", "condor", "oar", "slurm"])
    assert [type(system) for system in found] == [Slurm, HTCondor, OAR]
    assert [system.name for system in found] == ["slurm", "condor", "oar"]
    assert all(system.skipped == 0 for system in found)


def test_a_batch_system_that_is_not_known_is_an_error_that_names_those_that_are():
    with pytest.raises(ConfigError, match="'pbs' is not known; there are condor, gridengine, oar, slurm"):
        find_systems(["oar", "pbs"])


def test_a_command_is_asked_in_english_and_with_what_is_added_to_the_environment(tmp_path, monkeypatch):
    commands = Commands(tmp_path / "bin", monkeypatch)
    script = commands.directory / "tell"
    script.write_text('#!/bin/sh\necho "$LC_ALL $MORE"\n')
    script.chmod(0o755)
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    assert ask(["tell"], "Test", env={"MORE": "yes"}) == "C yes\n"


@pytest.mark.parametrize(
    ("answer", "why", "said"),
    [
        ({"status": 3, "said": "refused"}, "status", "returned 3: refused; run it by hand to see how Test"),
        ({"slow_s": 30}, "late", "did not end within 0.3 s and was killed; run it by hand"),
        ({"text": "x" * 2000}, "", "printed more than 1000 bytes and was killed; run it by hand"),
    ],
)
def test_a_command_that_does_not_answer_is_an_error_that_says_what_to_do(tmp_path, monkeypatch, answer, why, said):
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.answers(["tell"], **answer)
    monkeypatch.setattr(answers, "MAX_ANSWER", 1000)
    with pytest.raises(AskError) as caught:
        ask(["tell"], "Test", deadline_s=0.3 if "slow_s" in answer else 20)
    assert said in str(caught.value) and caught.value.why == why


def test_an_answer_may_have_several_values_or_none():
    assert json_values(' {"a": 1}\n[2]\t', "tell") == [{"a": 1}, [2]]
    assert json_values(" \n", "tell") == []


def test_numbers_that_are_none_are_not_taken_for_some():
    assert json_values("[NaN, Infinity, 1e400, 123456789012345678901234567890]", "tell")[0][3] is None
    assert [count(value) for value in (3, 3.0, 0, "3")] == [3, 3, 0, 3]
    assert [count(value) for value in (None, True, -1, 3.5, "x", [3], float("nan"), float("inf"))] == [None] * 8


def test_control_characters_in_texts_do_no_harm_to_others():
    assert json_values('{"a": "x\ny\x01", "b": 2}', "tell") == [{"a": "x\ny\x01", "b": 2}]
    assert name("x\ny") is None and name("") is None and name("é") == "é"


def test_a_recent_answer_is_not_asked_for_again_but_a_failure_is(monkeypatch):
    coming = iter([BatchError("not now"), "first", "second"])

    def get():
        answer = next(coming)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(answers, "FRESH_S", 3600)
    cached = Cached(get)
    with pytest.raises(BatchError):
        cached()
    assert cached() == cached() == "first"
    monkeypatch.setattr(answers, "FRESH_S", -1)
    assert cached() == "second"
