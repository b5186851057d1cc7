"""Terminal output of `colmet mem`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from colmet.gridengine import text
from colmet.gridengine.model import Memory


def show(
    memory: Memory,
    details: bool,
    titles: Sequence[str],
    above: Sequence[str] = (),
    colours: bool = True,
    console: Console | None = None,
) -> None:
    """Print a table.

    Args:
        memory: figures to show.
        details: whether with the jobs of each host.
        titles: of the columns.
        above: lines above it. If given, the screen is cleared, and the output cut to its height.
        colours: whether colours are allowed.
        console: destination; the standard output by default.
    """
    console = console or Console(highlight=False, markup=False, emoji=False, no_color=None if colours else True)
    has_colours = console.color_system is not None and not console.no_color
    table = text.lines(memory, details, console.width, has_colours, titles)
    told = [*map(Text, above), *[Text.assemble(*[(part.text, part.style) for part in line]) for line in table]]
    if above:
        more = len(told) - (console.height - 1)
        if more > 0:
            del told[console.height - 2 : -1]  # the legend stays
            told.insert(-1, Text(f"... {more + 1} more lines"))
        console.clear()
    with console.capture() as captured:  # written at once, to avoid flicker
        for one in told:
            console.print(one, no_wrap=True, overflow="crop", crop=True)
    console.file.write(captured.get())
    console.file.flush()
