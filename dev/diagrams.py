"""Render the diagrams of the documentation: docs/pictures/*.dot, with Graphviz."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path


def digest(source: str) -> str:
    """Return the line that ties an SVG file to its source text."""
    return f"<!-- source sha256: {hashlib.sha256(source.encode()).hexdigest()} -->"


def render(source: str) -> str:
    """Return the SVG of a text for Graphviz, with the digest of the text; CalledProcessError if it is refused."""
    command = ["dot", "-Tsvg"]
    svg = subprocess.run(command, input=source, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.S)  # the version of Graphviz, and the names of nodes
    return f"{svg.rstrip()}\n{digest(source)}\n"


def main(directory: Path) -> None:
    """Render each diagram of a directory."""
    if shutil.which("dot") is None:
        raise SystemExit("diagrams: there is no dot: apt-get install --no-install-recommends graphviz")
    for path in sorted(directory.glob("*.dot")):
        path.with_suffix(".svg").write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.with_suffix(".svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
