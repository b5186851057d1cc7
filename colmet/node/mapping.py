"""What `counter_7` is: the names of numbered columns, as rows of a table and as the files that Colmet 0.6 wrote."""

from __future__ import annotations

from typing import NamedTuple


class CounterName(NamedTuple):
    """What a numbered column of a table holds on this node.

    Attributes:
        counter: the column, ``counter_7``.
        name: what it counts, ``package-0``, ``instructions``.
        unit: of its values.
        zone: what part of the node it is about, "" for all of it.
    """

    counter: str
    name: str
    unit: str
    zone: str = ""
