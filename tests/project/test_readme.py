"""README.md is short, and its quick start is what `make test-bare` runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh quick-start\n(.*?)^```$", README, re.M | re.S)


def test_the_readme_is_read_in_three_minutes():
    assert len(README.split()) <= 700 and len(re.findall(r"!\[", README)) == 1


def test_the_quick_start_is_two_commands_in_the_source_directory_that_a_bare_debian_runs():
    (block,) = COMMANDS
    assert block.split("\n") == ["make demo", "make test", ""]
    script = (ROOT / "scripts/test-bare.sh").read_text(encoding="utf-8")
    assert "^```sh quick-start$" in script and "apt-get update && apt-get install -y make" in script
    assert re.search(r"--variant=apt .*--include=ca-certificates *\\", script), "no make or python3 before"


def test_the_first_screen_has_the_time_of_each_command_and_what_it_needs():
    screen = "\n".join(README.splitlines()[:45])
    for command in COMMANDS[0].split("\n")[:-1]:
        assert re.search(rf"^\| `{command}` \| .* \| \d+ (s|min)\b", screen, re.M)
    assert "need make, Python 3.9 or newer" in screen and "of disk" in screen
