"""What sites rely on, as lists (docs/stability.md): options, columns of tables, answers of the JSON interface.

`python -m dev.stable tests/data/stable` adds what is new to the lists there; it removes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from colmet.commands.programs import COMMANDS, PROGRAMS
from colmet.common.tables import schemas
from colmet.web.access import Access
from colmet.web.interface import described
from colmet.web.server import build_app

GUIDE = Path(__file__).resolve().parents[1] / "docs/guide.md"
OPTIONS_06 = {
    "colmet-node": """
        --cgroup --cpuset_rootpath --disable-procstats --enable-infiniband --enable-ipmipower --enable-jobproc
        --enable-lustre --enable-nvidia --enable-perfhw --enable-RAPL --enable-temperature --help --ipmipower-cmd
        --lustre-prefix --omnipath --perfhw-list --pid --regex_job_id --sample-period --tid --verbose --version
        --zeromq-hwm --zeromq-linger --zeromq-uri
    """,
    "colmet-collector": """
        --buffer-size --elastic-host --elastic-index-prefix --enable-stdout-backend --hdf5-complevel --hdf5-complib
        --hdf5-filepath --help --http-credentials --no-check-certificates --sample-period --verbose --version
        --zeromq-bind-uri --zeromq-hwm --zeromq-linger
    """,
}


def _promised() -> dict[str, set[str]]:
    """Return the options of each program that 0.6 had or that a command of the user guide has."""
    promised = {program: set(names.split()) for program, names in OPTIONS_06.items()}
    for command, arguments in re.findall(r"^(?:\$ )?(colmet [a-z]+)(.*)", re.sub("`", "\n", GUIDE.read_text()), re.M):
        options = re.findall(r" (--?[a-z][a-z-]*)", arguments.partition("#")[0])
        promised.setdefault(command, set()).update(options)
    return promised


def options() -> Iterator[str]:
    """Yield each promised option of each program and command, and whether it has a value."""
    programs = {**PROGRAMS, **COMMANDS}
    for name, promised in _promised().items():
        for action in programs[name].build().actions if promised else ():
            if promised & set(action.option_strings):
                for option in action.option_strings:
                    yield f"{name} {option}{'' if action.nargs == 0 else ' VALUE'}"


def columns() -> Iterator[str]:
    """Yield each column of each table, with unit, kind and type."""
    for schema in schemas().values():
        for field in schema.fields:
            yield f"{schema.name} {schema.scope} {field.name} {field.unit} {field.kind} {field.dtype}"


def archive_columns() -> Iterator[str]:
    """Yield each column of the job archive, with its unit."""
    from colmet.jobs import columns as of_archive

    for column in (*of_archive.MEASURED, *of_archive.BATCH):
        yield f"{column.name} {column.kind} {column.unit}".rstrip()


def interface(facts: Any) -> Iterator[str]:
    """Yield each address of the JSON interface, its parameters, and the fields of its shapes.

    Args:
        facts: answers queries; none is made.
    """
    document = described(build_app(facts, Access(None)), True)
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            yield f"{method.upper()} {path}"
            for parameter in one.get("parameters", ()):
                yield f"{method.upper()} {path} {parameter['in']} {parameter['name']}"
    for name, shape in document["components"]["schemas"].items():
        for field in shape.get("properties", ()):
            yield f"{name}.{field}"


LISTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "options": options,
    "columns": columns,
    "archive": archive_columns,
    "interface": lambda: interface(None),
}


def recorded(folder: Path, name: str) -> set[str]:
    """Return the entries of a list; those of a line that begins with # are a comment."""
    path = folder / f"{name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def main() -> int:
    """Add what is new to the lists in a folder."""
    if len(sys.argv) != 2:
        print("usage: python -m dev.stable FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in LISTS.items():
        before, now = recorded(folder, name), set(build())
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in sorted(before | now)))
        print(f"{name}: {len(now - before)} new, {len(before - now)} missing, {len(before | now)} in the list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
