"""Files with one secret: a password, a token, a salt, a key.

`read` and `read_safe_line` require a plain file, unreadable by others. `read_line` only warns, and accepts pipes, as
Colmet 0.6 did. `option` is the file's option of the command line, for errors.
"""

from __future__ import annotations

import logging
import os
import stat

from colmet.common.errors import ConfigError
from colmet.common.host.files import write_whole

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 10
MAX_STRICT_BYTES = 4096


def read(option: str, path: str) -> bytes:
    """Return the content of a plain file readable by its owner, and at most a group.

    Raises:
        ConfigError: it cannot be read, others can read it, or it is too large.
    """
    _require_name(option, path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{option} {path}: not a file")
            # Group bits are accepted: systemd gives a service its credentials by an access list, shown as group bits.
            if status.st_mode & 0o007:
                mode = stat.S_IMODE(status.st_mode)
                raise ConfigError(f"{option} {path}: others can read it (mode {mode:04o}); chmod 600 {path}")
            content = file.read(MAX_STRICT_BYTES + 1)
    except (OSError, ValueError) as err:
        raise ConfigError(f"{option} {path}: {getattr(err, 'strerror', None) or err}") from err
    if len(content) > MAX_STRICT_BYTES:
        raise ConfigError(f"{option} {path}: larger than the {MAX_STRICT_BYTES} bytes that a secret may have")
    return content


def read_line(option: str, path: str) -> str:
    """Return the only line of a file or pipe; warn if others than its owner and group can use it.

    Raises:
        ConfigError: it cannot be read, or is not one line of text.
    """
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o037:  # 0.6 read such files
                log.warning("%s %s: others than its owner and group can use it; chmod 600 %s", option, path, path)
            content = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise ConfigError(f"{option} {path}: {err.strerror}") from err
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{option} {path}: not one line")
    return _only_line(option, path, content)


def read_safe_line(option: str, path: str) -> str:
    """Return the only line of a file unreadable by others; ConfigError for control characters, else as for `read`."""
    line = _only_line(option, path, read(option, path))
    if not line.isprintable():
        raise ConfigError(f"{option} {path}: has control characters")
    return line


def _only_line(option: str, path: str, content: bytes) -> str:
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as err:
        raise ConfigError(f"{option} {path}: not text in UTF-8") from err
    if len(lines) != 1 or not lines[0]:
        raise ConfigError(f"{option} {path}: not one line")
    return lines[0]


def create(option: str, path: str, content: bytes) -> None:
    """Write a secret to a new file, for its owner alone.

    Raises FileExistsError if it exists; ConfigError if it cannot be written.
    """
    _require_name(option, path)
    try:
        write_whole(path, content, replace=False, shared=True)
    except FileExistsError:
        raise
    except (OSError, ValueError) as err:
        raise ConfigError(f"{option} {path}: {getattr(err, 'strerror', None) or err}") from err


def _require_name(option: str, path: str) -> None:
    if not path:
        raise ConfigError(f"{option}: names no file; is the variable empty that has its name?")
