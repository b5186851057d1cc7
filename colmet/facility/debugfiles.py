"""Output of -d: files in the current directory instead of an endpoint."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from colmet.common.errors import ColmetError
from colmet.facility.documents import DocumentGroup

# others may be able to write in the directory, too
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write(groups: Iterable[DocumentGroup], token: str | None, directory: str = ".") -> None:
    """Append each document to the file of its group: JSON indented by 4, nothing between two documents.

    A new file is for its owner alone, as it contains the token and names.

    Raises:
        ColmetError: a file cannot be written, is a link or not a regular file, belongs to another user, or is readable
            or writable by others.
    """
    for group in groups:
        if not group.documents:
            continue
        text = "".join([json.dumps({**document, "token": token}, indent=4) for document in group.documents])
        path = Path(directory, group.file)
        try:
            with open(os.open(path, FLAGS, 0o600), "a", encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ColmetError(f"{path.absolute()} cannot be written: it is not a file")
                if status.st_uid != os.geteuid() or status.st_mode & 0o077 or status.st_nlink > 1:
                    raise ColmetError(
                        f"{path.absolute()} cannot be written: documents have names and a token, and others may read "
                        "this file; remove it, or run this in a directory of your own"
                    )
                file.write(text)
        except OSError as err:
            why = "it is a link" if err.errno == errno.ELOOP else err.strerror or err
            raise ColmetError(f"{path.absolute()} cannot be written: {why}") from err
