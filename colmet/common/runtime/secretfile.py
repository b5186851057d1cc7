"""A file that holds one secret, in one line."""

from __future__ import annotations

import logging
import os
import stat

from colmet.common.errors import ConfigError

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 10


def read_line(option: str, path: str) -> str:
    """The one line of a file; a warning where others than its owner can use it.

    Args:
        option: that names it, for what is said.
        path: of the file.

    Raises:
        ConfigError: it cannot be read, or is not one line of text.
    """
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o037:
                log.warning("%s %s: others than its owner and group can use it; chmod 600 %s", option, path, path)
            text = file.read(MAX_BYTES + 1).decode()
    except OSError as err:
        raise ConfigError(f"{option} {path}: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{option} {path}: not text in UTF-8") from err
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0] or len(text) > MAX_BYTES:
        raise ConfigError(f"{option} {path}: not one line")
    return lines[0]
