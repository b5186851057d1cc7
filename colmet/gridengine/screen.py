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
    above: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print a table, `MemoryTable`.

    If there are lines above it, the screen is cleared, and the output cut to its height.
    """
    console = console or Console(highlight=False, markup=False, emoji=False)
    table = text.MemoryTable(memory, details, console.width, titles).lines()
    lines = [*map(Text, above), *[Text.assemble(*[(part.text, part.style) for part in line]) for line in table]]
    if above:
        more = len(lines) - (console.height - 1)
        if more > 0:
            del lines[console.height - 2 : -1]  # the legend stays
            lines.insert(-1, Text(f"... {more + 1} more lines"))
        console.clear()
    with console.capture() as captured:  # written at once, to avoid flicker
        for one in lines:
            console.print(one, no_wrap=True, overflow="crop", crop=True)
    console.file.write(captured.get())
    console.file.flush()
