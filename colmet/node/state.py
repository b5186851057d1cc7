"""State kept for the agent's next start, even after a crash of the agent.

A save replaces the file as a whole, so a kill at any moment leaves the last complete one. Its directory is in memory
(`/run`), so nothing waits for a disk and no fsync is needed: a crash of the machine loses nothing of worth, as all
kept values count from the machine's boot.
"""

from __future__ import annotations

import logging
import struct
import uuid
import zlib

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import is_later, later_form
from colmet.common.host.host import Host, PrivateDirectory

log = logging.getLogger(__name__)

DIRECTORY = "/run/colmet"  # without a unit; of a unit, its $RUNTIME_DIRECTORY is the only place in /run for its user
BOOT_ID = "/proc/sys/kernel/random/boot_id"
FORM = 1  # the digit of the magic
MAGIC = b"colmet%d\n" % FORM
_HEAD = struct.Struct("<8s16sQ")  # magic, boot id, payload bytes
_SUM = struct.Struct("<I")  # CRC-32 of the head and the payload; the payload follows
HEADER_BYTES = _HEAD.size + _SUM.size
_LOSS = "a restart of the agent will lose what ended tasks used"


def _form_of(data: bytes) -> int | None:
    """Return the form of a file; None if its start is damaged."""
    magic, digit = data[: len(MAGIC)], data[len(MAGIC) - 2 : len(MAGIC) - 1]
    return int(digit) if digit.isdigit() and magic == MAGIC[:-2] + digit + MAGIC[-1:] else None


def _unpack(data: bytes) -> tuple[bytes, bytes]:
    """Return boot id and payload of a file; ValueError with the reason if it is incomplete or damaged."""
    if len(data) < HEADER_BYTES:
        raise ValueError(f"it ends after {len(data)} bytes")
    head, payload = data[: _HEAD.size], data[HEADER_BYTES:]
    magic, boot, length = _HEAD.unpack(head)
    if magic != MAGIC:
        raise ValueError(f"it starts with {magic!r}")
    if length != len(payload):
        raise ValueError(f"it has {len(payload)} of {length} bytes")
    if _SUM.unpack_from(data, _HEAD.size)[0] != zlib.crc32(payload, zlib.crc32(head)):
        raise ValueError("its checksum is wrong")
    return boot, payload


class StateFile:
    """One file of state, for one agent at a time; `<name>.lock` is beside it and, after damage, `<name>.damaged`.

    Its directory is made if its parent exists. It must belong to the agent's user, and must not be writable for others.
    No method raises: an agent without state still measures, and logs its loss once. `failures` counts failed saves.
    """

    def __init__(self, host: Host, directory: str, name: str = "taskstats.state", max_bytes: int = 8 << 20) -> None:
        self._host = host
        self._path = directory
        self._name = name
        self._file = f"{directory}/{name}"
        self._max_bytes = max_bytes
        self._boot = b""
        self._directory: PrivateDirectory | None = None
        self.failures = 0

    def open(self) -> bool:
        """Lock the file for this agent; return whether it succeeded. If not, `load` and `save` do nothing."""
        self.close()
        directory = None
        try:
            self._boot = uuid.UUID(self._host.read(BOOT_ID).decode("ascii").strip()).bytes
            directory = self._host.private_directory(self._path)
            directory.lock(f"{self._name}.lock")
        except BlockingIOError:
            self._warn("another colmet-node has it; give each its own --state-dir")
        except FileNotFoundError as err:
            self._warn(f"{err.filename}: {err.strerror}; make the directory it is to be in, or change --state-dir")
        except PermissionError as err:
            self._warn(
                f"{err.strerror}; give colmet-node with --state-dir a directory of its user's own in which nobody else "
                "may write"
            )
        except (OSError, ValueError) as err:
            self._warn(f"{err}; --state-dir chooses another place")
        else:
            self._directory = directory
            return True
        if directory is not None:
            directory.close()
        return False

    def _warn(self, why: str) -> None:
        log.warning("no state is kept, %s directory=%s: %s", _LOSS, self._path, why)

    def load(self) -> bytes | None:
        """Return the payload of the last complete save since the machine's boot; None without one."""
        if self._directory is None:
            return None
        try:
            data = self._directory.read(self._name, self._max_bytes + HEADER_BYTES)
            if is_later(form := _form_of(data), FORM):
                remedy = "continue without what tasks used that ended before this start; it is kept as "
                log.warning("state is not used: %s", later_form(self._file, form, FORM, remedy + self._rename("later")))
                return None
            boot, payload = _unpack(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as err:
            log.warning(
                "state is damaged, what tasks used that ended before this start is lost path=%s kept=%s: %s",
                self._file,
                self._rename("damaged"),
                err,
            )
            return None
        if boot != self._boot:
            log.info("state of an earlier boot is not used path=%s", self._file)
            return None
        return payload

    def _rename(self, suffix: str) -> str:
        """Rename the file; return its new name, or its name and the cause of a failure."""
        assert self._directory is not None  # it has just been read
        kept = f"{self._name}.{suffix}"
        try:
            self._directory.rename(self._name, kept)
        except OSError as err:
            return f"{self._name} ({err.strerror})"
        return kept

    def save(self, payload: bytes) -> bool:
        """Replace the saved state; return whether it succeeded. A failure leaves the earlier state."""
        if self._directory is None:
            return False
        try:
            if len(payload) > self._max_bytes:
                raise ValueError(f"{len(payload)} bytes are more than the {self._max_bytes} that it may have")
            head = _HEAD.pack(MAGIC, self._boot, len(payload))
            checksum = _SUM.pack(zlib.crc32(payload, zlib.crc32(head)))
            self._directory.write(self._name, head + checksum + payload)
        except (OSError, ValueError) as err:
            self.failures += 1
            if powers_of_ten(self.failures):
                log.warning("state not saved, %s path=%s failures=%d: %s", _LOSS, self._file, self.failures, err)
            return False
        return True

    def close(self) -> None:
        """Release the file, not deleted, to other agents; also twice."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None
