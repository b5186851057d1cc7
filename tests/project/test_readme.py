"""README.md is short, and its quick start is what `make test-bare` runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh quick-start\n(.*?)^```$", README, re.M | re.S)


def test_the_readme_is_read_in_three_minutes():
    assert len(README.split()) <= 700 and len(re.findall(r"!\[", README)) == 1


def test_the_quick_start_is_two_commands_that_a_bare_debian_runs():
    (block,) = COMMANDS
    fetch, run = block.splitlines()
    assert re.search(r"git clone https://\S+/colmet$", fetch) and run == "make -C colmet demo"
    script = (ROOT / "scripts/test-bare.sh").read_text(encoding="utf-8")
    assert "^```sh quick-start$" in script and all(f'"${{quick_start[{n}]}}"' in script for n in (0, 1))
    assert re.search(r"--variant=apt .*--include=ca-certificates *\\", script), "no git, make or python3 before"
