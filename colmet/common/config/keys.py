"""Key files: key pairs for CURVE, and the directory of the nodes' public keys.

A key is 32 bytes, written as 40 characters of Z85. A file has the form of ZeroMQ's certificates (docs/security.md):

    public-key = "..."
    secret-key = "..."      only in the file of its owner

The file of the collector's public key also has, as metadata, the addresses for the nodes' data.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ConfigError
from colmet.common.host.files import NOT_GIVEN, write_whole
from colmet.common.wire.limits import HOST

log = logging.getLogger(__name__)

PUBLIC, SECRET = ".key", ".secret"  # suffixes of file names
DIRECTORY = "/etc/colmet/keys"  # its files are used by default if they exist, see `default`
NODES = "nodes"  # in it: the folder with the nodes' public keys
SERVICE_USER = "colmet"  # of the collector's unit
MAX_FILE_BYTES = 16 << 10
MAX_FILES = 65536
CHECK_S = 1.0  # between two checks for added and removed files
FULL_CHECK_S = 10.0  # and for files changed in place

_DIGITS = {
    character: n
    for n, character in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
}
_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)
_LINE = re.compile(r"(public|secret)-key\s*=\s*\"([^\"]*)\"", re.ASCII)
_ADDRESS = re.compile(r"collector-uri\s*=\s*\"([^\"]*)\"", re.ASCII)


_Files = dict[str, tuple[tuple[int, int, int, int], tuple[str, ...]]]  # by name: a file's signature and keys


class KeyPair:
    """A public key and its secret one. Its text has no secret: it may be logged."""

    def __init__(self, public: str, secret: str) -> None:
        self.public = public
        self.secret = secret

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


class _Keys(NamedTuple):
    public: list[str]
    secret: list[str]
    uris: list[str]


def default(name: str) -> str | None:
    """Return the path of a file or folder of keys in `DIRECTORY`, None if it does not exist."""
    path = os.path.join(DIRECTORY, name)
    return path if os.path.lexists(path) else None


def check_key(text: str) -> str:
    """Return a text if it is a key in Z85; else raise ValueError, without the text: it may be a secret."""
    if len(text) != 40 or not set(text) <= _DIGITS.keys():
        raise ValueError("a key is 40 characters of Z85")
    for start in range(0, 40, 5):
        value = 0
        for character in text[start : start + 5]:
            value = value * 85 + _DIGITS[character]
        if value >> 32:
            raise ValueError("a key is 40 characters of Z85")
    return text


def _parse(text: str) -> _Keys:
    """Return the keys in the text of a file; ValueError if it has another form."""
    keys, in_metadata = _Keys([], [], []), False
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line in ("metadata", "curve"):
            in_metadata = line == "metadata"
        elif in_metadata:
            keys.uris.extend(_ADDRESS.findall(line) if _ADDRESS.fullmatch(line) else ())
        elif line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f'line {number} is not of the form public-key = "..."')
            try:
                getattr(keys, match[1]).append(check_key(match[2]))
            except ValueError as err:
                raise ValueError(f"line {number}: {err}") from None
    if not keys.public:
        raise ValueError('there is no line public-key = "..."')
    return keys


def _owners(uid: int) -> set[int]:
    """Return the accepted owners of secrets for a daemon of the user `uid`; for root also the user of the unit."""
    owners = {0, uid}
    if uid == 0:
        with contextlib.suppress(KeyError):
            owners.add(pwd.getpwnam(SERVICE_USER).pw_uid)
    return owners


def _read(path: str, private: bool, uid: int | None = None) -> _Keys:
    """Return the keys in a file; OSError or ValueError, with the reason as text.

    `uid` is the daemon that uses the secret of a `private` file; this process's own by default.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        if private and status.st_mode & 0o077:
            raise ValueError(f"others can read it (mode {status.st_mode & 0o777:04o}); chmod 600 {path}")
        if private and status.st_uid not in _owners(os.geteuid() if uid is None else uid):
            raise ValueError(f"it belongs to another user (uid {status.st_uid}); chown it to the daemon's user")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than the {MAX_FILE_BYTES} bytes that a file of keys may have")
    try:
        return _parse(content.decode("ascii"))
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None


def read_public(path: str, option: str) -> str:
    """Return the public key in a file; ConfigError names the option and the remedy."""
    try:
        keys = _read(path, private=False)
        if len(set(keys.public)) != 1:
            raise ValueError("it has more than one public key")
    except (OSError, ValueError) as err:
        raise _unusable(option, path, err, PUBLIC) from err
    return keys.public[0]


def read_uris(path: str) -> list[str]:
    """Return the addresses in the file of the collector's public key; none if it cannot be read."""
    try:
        return _read(path, private=False).uris
    except (OSError, ValueError):
        return []


def read_pair(path: str, option: str, uid: int | None = None) -> KeyPair:
    """Return the pair in a file unreadable by others, of the user `uid`; ConfigError names option and remedy."""
    try:
        keys = _read(path, private=True, uid=uid)
        if len(keys.public) != 1 or len(keys.secret) != 1:
            raise ValueError("it has to have one public key and one secret key")
    except (OSError, ValueError) as err:
        raise _unusable(option, path, err, SECRET) from err
    return KeyPair(keys.public[0], keys.secret[0])


def _unusable(option: str, path: str, err: OSError | ValueError, suffix: str) -> ConfigError:
    what = err.strerror if isinstance(err, OSError) else str(err)
    return ConfigError(f"{option} {path}: {what}; give a file NAME{suffix} that `colmet keygen` has made")


def check_name(name: str) -> str:
    """Return a name; ConfigError if it is not that of a host."""
    if HOST.fullmatch(name) is None or len(name) > 200:
        raise ConfigError(f"{name!r} is not the name of a host")
    return name


def write_pair(directory: str, name: str, pair: KeyPair) -> tuple[str, str]:
    """Write NAME.key and NAME.secret, if neither exists; return their paths.

    Raises:
        ConfigError: one of them exists, or cannot be written. Neither is left behind then.
    """
    paths = os.path.join(directory, check_name(name) + PUBLIC), os.path.join(directory, name + SECRET)
    if os.path.lexists(paths[0]):
        raise ConfigError(f"{paths[0]}: {os.strerror(errno.EEXIST)}; nothing was written for {name}")
    write_secret(paths[1], name, pair)
    try:
        write_public(paths[0], name, [pair.public])
    except ConfigError:
        os.unlink(paths[1])
        raise
    return paths


def write_secret(path: str, name: str, pair: KeyPair, owner: int = -1, replace: bool = False) -> None:
    """Write the key pair of `name`, a host or "collector", readable by its owner only.

    It belongs to this process's user by default, and where the system does not permit to give it to `owner`.

    Raises:
        ConfigError: it exists, or cannot be written; nothing is left behind then.
    """
    head = f"# Colmet: the secret key of {name}. Whoever reads it can speak as {name}: keep it on that machine alone.\n"
    text = f'{head}curve\n    public-key = "{pair.public}"\n    secret-key = "{pair.secret}"\n'
    _write(path, name, text, 0o600, owner, replace)


def write_public(path: str, name: str, public: Sequence[str], uris: Sequence[str] = ()) -> None:
    """Write the public keys of `name` in place of an existing file, those of a collector with the URIs for nodes.

    Raises:
        ConfigError: it cannot be written; the former content stays.
    """
    text = f"# Colmet: the public key of {name}. It may be shown to everybody.\n"
    if uris:
        text += "metadata\n" + "".join([f'    collector-uri = "{uri}"\n' for uri in uris])
    text += "curve\n" + "".join([f'    public-key = "{key}"\n' for key in public])
    _write(path, name, text, 0o644, -1, True)


def _write(path: str, name: str, text: str, mode: int, owner: int, replace: bool) -> None:
    try:
        write_whole(path, text.encode("ascii"), mode=mode, owner=owner, replace=replace, shared=True)
    except OSError as err:
        if owner != -1 and err.errno in NOT_GIVEN:
            _write(path, name, text, mode, -1, replace)
            return
        raise ConfigError(f"{path}: {err.strerror}; nothing was written for {name}") from err


class KnownKeys:
    """The public keys in a directory, and their nodes: a file NAME.key has those of the node NAME.

    `refresh` reads the folder again after a change in it. An unusable file is skipped, and so is a key in the files of
    two nodes: then it belongs to neither.

    Args:
        directory: with the files.
        option: of the directory, for errors.
        monotonic: a clock, in seconds.

    Raises:
        ConfigError: the folder cannot be read.
    """

    def __init__(self, directory: str, option: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._monotonic = monotonic
        self._files: _Files = {}
        self._owners: dict[str, str] = {}
        self._listed = -1
        self._checked_at = -math.inf
        self._full_check_at = 0.0
        self.broken = 0
        self.unreadable = 0
        try:
            self._read()
        except OSError as err:
            raise ConfigError(
                f"{option} {directory}: {err.strerror}; give the folder with the public keys of the nodes, NAME.key"
            ) from err

    def owner(self, key: str) -> str | None:
        """Return the node of a public key; None if unknown, or no longer known."""
        return self._owners.get(key)

    def __len__(self) -> int:
        return len(self._owners)

    def refresh(self, interval_s: float = CHECK_S) -> None:
        """Read the changes in the directory, when due; in one thread, while others may call `owner`."""
        now = self._monotonic()
        if now < self._checked_at + interval_s:
            return
        self._checked_at = now
        try:
            if now >= self._full_check_at or os.stat(self._directory).st_mtime_ns != self._listed:
                self._read()
        except OSError as err:  # keep the known keys: no node is refused because a disk is away
            self.unreadable += 1
            if powers_of_ten(self.unreadable):
                log.error("folder of keys cannot be read, the keys stay as they were: %s", err)

    def _read(self) -> None:
        listed = os.stat(self._directory).st_mtime_ns
        files: _Files = {}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                name = entry.name[: -len(PUBLIC)]
                if not entry.name.endswith(PUBLIC) or entry.name.startswith("."):
                    continue
                if len(files) == MAX_FILES:
                    log.error("more than %d keys, the others are not used: %s", MAX_FILES, self._directory)
                    break
                known = self._files.get(name)
                try:
                    status = entry.stat()
                    signature = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
                except FileNotFoundError:  # gone meanwhile
                    continue
                except OSError:  # such as a circular link; reported on reading it
                    signature = 0, 0, 0, 0
                if known is None or known[0] != signature:
                    known = signature, self._keys(name, entry.path)
                files[name] = known
        owners: dict[str, str] = {}
        doubles = set()
        for name, (_, keys) in files.items():
            for key in keys:
                if owners.setdefault(key, name) != name:
                    doubles.add(key)
                    self._complain(f"{name}{PUBLIC} and {owners[key]}{PUBLIC} have the same key, which neither has now")
        for key in doubles:
            del owners[key]
        if self._listed >= 0 and owners != self._owners:
            log.info("keys of nodes read again keys=%d before=%d", len(owners), len(self._owners))
        self._files, self._owners, self._listed = files, owners, listed
        self._full_check_at = self._monotonic() + FULL_CHECK_S

    def _keys(self, name: str, path: str) -> tuple[str, ...]:
        try:
            if HOST.fullmatch(name) is None:
                raise ValueError("the name before .key is not a host name")
            return tuple(_read(path, private=False).public)
        except (OSError, ValueError) as err:
            if isinstance(err, OSError) and err.errno in _NOT_OF_THE_FILE:
                raise
            self._complain(f"{path}: {err.strerror if isinstance(err, OSError) else err}")
            return ()

    def _complain(self, what: str) -> None:
        self.broken += 1
        if self.broken <= 10 or powers_of_ten(self.broken):
            log.error("key file skipped broken=%d: %s", self.broken, what)
