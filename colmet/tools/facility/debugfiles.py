"""-d: files in the current directory instead of an endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from colmet.common.errors import ColmetError
from colmet.tools.facility.documents import Group


def write(groups: Iterable[Group], token: str | None, directory: str = ".") -> None:
    """Append each document to the file of its group: JSON indented by 4, nothing between two documents.

    Args:
        groups: what would be sent.
        token: of the documents.
        directory: where the files are.

    Raises:
        ColmetError: a file cannot be written.
    """
    for group in groups:
        text = "".join([json.dumps({**document, "token": token}, indent=4) for document in group.documents])
        path = Path(directory, group.file)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as err:
            raise ColmetError(f"{path.absolute()} cannot be written: {err.strerror or err}") from err
