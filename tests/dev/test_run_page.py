"""Pages whose commands are run: what is a block, and which outputs agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev import run_page
from dev.live import Failed
from dev.run_page import HOST, Block, agrees, blocks_of, run_blocks
from tests.support.page_folder import page_folder

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


@pytest.fixture
def folder(root):
    with page_folder() as path:
        yield path


@pytest.mark.live
def test_a_page_runs_in_one_shell_that_leaves_the_machine_as_it_is(folder):
    setting = Path("/proc/sys/kernel/task_delayacct")
    before = setting.read_text()
    blocks = [
        Block("name=colmet-test-$$\nhostname\n", f"{HOST}\n"),
        Block("mkdir /etc/$name /var/lib/$name && echo > here-$name\n", None),
        Block("cd /proc/sys/kernel && echo $((1 - $(cat task_delayacct))) > task_delayacct\n", None),
        Block("ls -d /etc/$name | wc -l\nsleep 300 &\n", "7\n"),
    ]  # fmt: skip
    outputs = [output for _, output in run_blocks(blocks, folder)]
    assert outputs == [f"{HOST}\n", "", "", "1\n"]
    assert setting.read_text() == before
    source = Path(run_page.SOURCE)
    assert [*Path("/etc").glob("colmet-test-*"), *Path("/var/lib").glob("colmet-test-*"), *source.glob("here-*")] == []


@pytest.mark.live
@pytest.mark.parametrize(
    ("block", "why"),
    [
        (Block("false\ntrue\n", None), "exit status 1"),
        (Block("echo other\n", "one\n"), "printed"),
        (Block("exit 3\n", None), "ended the shell"),
    ],
    ids=["a command fails", "another output", "the shell ends"],
)
def test_a_page_fails(folder, block, why):
    with pytest.raises(Failed, match=why):
        list(run_blocks([block], folder))
