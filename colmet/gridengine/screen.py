"""Terminal output of `colmet mem`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from colmet.gridengine import text
from colmet.gridengine.model import MemoryReport


def show(
    memory: MemoryReport,
    details: bool,
    titles: Sequence[str],
    console: Console | None = None,
) -> None:
    """Print a table, `MemoryTable`."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    table = text.MemoryTable(memory, details, console.width, titles).lines()
    lines = [Text.assemble(*[(part.text, part.style) for part in line]) for line in table]
    with console.capture() as captured:  # written at once, to avoid flicker
        for one in lines:
            console.print(one, no_wrap=True, overflow="crop", crop=True)
    console.file.write(captured.get())
    console.file.flush()
