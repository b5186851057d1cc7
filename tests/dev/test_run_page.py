"""Pages whose commands are run: what is a block, and which outputs agree."""

from __future__ import annotations

import pytest

from dev.run_page import QUERIES, agrees, blocks_of, plain

PAGE = """
```sh
never run
```

```sh run
echo one
echo two
```

```text
one
two
```

Words.

```sh run
true
```

```sh run
false
```

Words.

```text
no output of it
```
"""


def test_the_blocks_of_a_page_are_those_to_run_with_the_output_right_after_them():
    assert blocks_of(PAGE) == [("echo one\necho two\n", "one\ntwo\n"), ("true\n", None), ("false\n", None)]


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("used 0.34 of 2 cores\n", "used 12 of 64 cores\n"),
        ("███░░ 17 %  running 40.3 s\n", "█░░░░  < 1 %  running 1.2 s\n"),
        ("user 97 %\n", "user over 99 %\n"),
        ("2026-11-20 22:13:20 UTC\n", "2031-01-02 03:04:05 UTC\n"),
        ("a\n...\nb\n", "a\nx\ny\nb\n"),
        ("a\n...\n", "a\n"),
        ("█░ 1 %  running 2 s\n█░ 1 %  block I/O 0.2 s\n", "██ 9 %  running 2 s\n"),
        ("idle 20.5 s of 1 h 0 min\n", "idle 1 min 4 s of 2 d 3 h\n"),
        ("version 1.0.0.dev0\n", "version 1.0.0\n"),
    ],
)
def test_digits_bars_spaces_and_waits_may_differ(expected, actual):
    assert agrees(expected, actual) and agrees(expected, expected)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("at most 603 MiB\n", "at most 603 KiB\n"),
        ("at most 603 MiB\n", "at most - MiB\n"),
        ("603 MiB at most\n", "603 MiB at last\n"),
        ("Job  CPU\n 1  2\n", "Job  CPU  Memory\n 1  2\n"),
        ("a\nb\n", "b\na\n"),
        ("a\n", "a\nb\n"),
        ("a\n...\nb\n", "a\nx\n"),
        ("█░ 1 %  running 2 s\n", ""),
        ("", "a warning\n"),
    ],
)
def test_words_columns_units_and_the_order_of_lines_may_not(expected, actual):
    assert not agrees(expected, actual)


def test_an_output_is_compared_without_what_may_differ():
    assert plain("  4242  █░░░░ 10 %   768 KiB\n") == ["N BAR N % N KiB"]


@pytest.mark.parametrize(
    ("commands", "is_query"),
    [
        ("colmet jobs\n", True),
        ("colmet report 4242\n", True),
        ("echo secret | colmet login http://127.0.0.1:8080 --user alice --password-stdin\n", True),
        ("colmet jobs\ncolmet jobs\n", False),
        ("colmet-collector --config x &\n", False),
        ("kill $job\n", False),
    ],
)
def test_only_a_single_question_is_repeated(commands, is_query):
    assert bool(QUERIES.fullmatch(commands)) == is_query
