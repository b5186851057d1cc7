"""Texts that say which perf events are counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.errors import ConfigError
from colmet.node.kernel.perfchoices import MAX_TEXT, EventChoice, parse, parse_all, split


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("cache_ll", EventChoice("cache_ll", None, None)),
        ("cache_ll:-1:-1", EventChoice("cache_ll", None, None)),
        ("emulation_faults:2:4242", EventChoice("emulation_faults", 2.0, 4242)),
        ("r1a8:0.5:-1", EventChoice("r1a8", 0.5, None)),
        ("cpu/event=0x3c,umask=0x00/:-1:7", EventChoice("cpu/event=0x3c,umask=0x00/", None, 7)),
    ],
)
def test_a_text_is_a_choice(text, choice):
    assert parse(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1:1", "cycles:u", "cycles:1", "cycles:1:2:3", "a\nb", "cycles:0:1", "cycles:-2:1", "cycles:1e3:1"),
        *("cycles:nan:1", "cycles:86401:1", "cycles:0.001:1", "cycles:1:0", "cycles:1:-2", "cycles:1:1.5"),
        *("cycles:1:99999999999999999999", "cycles:\u0661:1", "cycles::"),
    ],
)
def test_a_text_that_is_none_is_refused(text):
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_a_maximum_is_taken_and_not_none():
    assert len(parse_all(["a"] * 5, 5)) == 5
    for texts in ([], ["a"] * 6):
        with pytest.raises(ConfigError, match=f"{len(texts)} events; give 5 at most, and one at least"):
            parse_all(texts, 5)


def test_commas_within_an_event_do_not_divide_a_list():
    assert split("cache_ll,emulation_faults:2:4242") == ["cache_ll", "emulation_faults:2:4242"]
    assert split(" a , cpu/event=0x3c,umask=0x00/:1:2,b/x,y/") == ["a", "cpu/event=0x3c,umask=0x00/:1:2", "b/x,y/"]
    assert split("") == [""] and split("a,") == ["a", ""]
    with pytest.raises(ConfigError, match="4097 characters"):
        split("," * (MAX_TEXT + 1))


@given(st.text(max_size=60) | st.text(alphabet="a/,:-1.0", max_size=60))
def test_whatever_the_text_it_is_choices_or_an_error(text):
    try:
        choices = parse_all(split(text), 5)
    except ConfigError:
        return
    for choice in choices:
        period = "-1" if choice.period_s is None else f"{choice.period_s:.9f}"
        assert parse(f"{choice.name}:{period}:{choice.job_id or -1}") == choice
