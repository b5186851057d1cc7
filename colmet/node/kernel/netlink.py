"""Generic netlink: a codec of pure functions, and a small socket.

Source: Linux include/uapi/linux/netlink.h and genetlink.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from colmet.common.errors import BackendUnavailable, ParseError

NETLINK_GENERIC = 16
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
GENERIC = struct.Struct("=BBH")  # genlmsghdr: command, version, reserved
ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_BPF = struct.Struct("=HBBI")  # struct sock_filter
ERROR = struct.Struct("=i")  # nlmsgerr starts with a negative errno, or 0

NLM_F_REQUEST = 1
NLM_F_ACK = 4
NLMSG_ERROR = 2
GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID = 1
CTRL_ATTR_FAMILY_NAME = 2
NLA_TYPE_MASK = 0x3FFF  # the upper bits are flags


def align(length: int) -> int:
    """Return the next multiple of 4: the start of the next message or attribute."""
    return (length + 3) & ~3


def pack_attribute(kind: int, payload: bytes) -> bytes:
    """Return the bytes of one attribute, padded."""
    length = ATTRIBUTE.size + len(payload)
    return ATTRIBUTE.pack(length, kind) + payload + b"\0" * (align(length) - length)


def pack_request(family: int, command: int, sequence: int, attributes: bytes, flags: int = 0) -> bytes:
    """Return the bytes of one generic netlink request."""
    payload = GENERIC.pack(command, 1, 0) + attributes
    return HEADER.pack(HEADER.size + len(payload), family, NLM_F_REQUEST | flags, sequence, 0) + payload


def attributes(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Return the attributes in data[start:end], each as (type, offset of its payload, length of its payload)."""
    end = len(data) if end is None else end
    while start + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(data, start)
        if length < ATTRIBUTE.size or start + length > end:
            raise ParseError("netlink attribute", bytes(data[start : start + 16]))
        yield kind & NLA_TYPE_MASK, start + ATTRIBUTE.size, length - ATTRIBUTE.size
        start += align(length)


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Return the messages in a datagram, each as (type, sequence, payload)."""
    start = 0
    while start + HEADER.size <= len(data):
        length, kind, _flags, sequence, _port = HEADER.unpack_from(data, start)
        if length < HEADER.size or start + length > len(data):
            raise ParseError("netlink message", bytes(data[start : start + 16]))
        yield kind, sequence, data[start + HEADER.size : start + length]
        start += align(length)


def error_code(payload: bytes) -> int:
    """Return the errno of an NLMSG_ERROR message, 0 for a plain acknowledgement."""
    if len(payload) < ERROR.size:
        raise ParseError("netlink error", payload)
    code: int = -ERROR.unpack_from(payload)[0]
    return code


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _MsgHdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _MMsgHdr(ctypes.Structure):
    _fields_ = (("header", _MsgHdr), ("length", ctypes.c_uint))


class Inbox:
    """A buffer for many datagrams, filled by one system call: recvmmsg(2), missing in Python's socket module.

    `slots` has one datagram a row.
    """

    def __init__(self, count: int, slot_bytes: int) -> None:
        self.slots: npt.NDArray[np.uint8] = np.zeros((count, slot_bytes), dtype=np.uint8)
        self._vectors = (_IoVec * count)()
        self._headers = (_MMsgHdr * count)()
        for n in range(count):
            self._vectors[n].base = self.slots.ctypes.data + n * slot_bytes
            self._vectors[n].length = slot_bytes
            self._headers[n].header.vectors = ctypes.addressof(self._vectors[n])
            self._headers[n].header.vector_count = 1
        # the filled-in lengths, seen as numbers: the last field of each header, before the padding
        words = np.frombuffer(memoryview(self._headers).cast("B"), dtype=np.uint32).reshape(count, -1)
        self._lengths: npt.NDArray[np.uint32] = words[:, _MMsgHdr.length.offset // 4]
        self._receive = ctypes.CDLL(None, use_errno=True).recvmmsg
        self._receive.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
        self._receive.restype = ctypes.c_int

    def fill(self, fd: int, count: int, start: int = 0) -> npt.NDArray[np.int64]:
        """Receive at most `count` waiting datagrams into the slots from `start` on; return the length of each.

        OSError with ENOBUFS: the receive buffer was too small, and answers were lost.
        """
        address = ctypes.addressof(self._headers) + start * ctypes.sizeof(_MMsgHdr)
        got = self._receive(fd, address, min(count, len(self.slots) - start), socket.MSG_DONTWAIT, None)
        if got < 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                raise OSError(code, os.strerror(code))
            got = 0
        lengths: npt.NDArray[np.int64] = self._lengths[start : start + got].astype(np.int64)
        return lengths


class NetlinkSocket:
    """A socket to the kernel that never blocks, for multicast groups by their mask.

    BackendUnavailable: this system lacks the protocol, or this process the permission.
    """

    def __init__(self, protocol: int, groups: int = 0) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as err:
            raise BackendUnavailable(f"this system lacks netlink protocol {protocol}: {err}") from err
        try:
            self._socket.setblocking(False)
            self._socket.bind((0, groups))
        except OSError as err:
            self._socket.close()
            raise BackendUnavailable(f"cannot bind a netlink socket: {err}") from err

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._socket.fileno()

    def set_receive_buffer(self, size: int) -> None:
        """Set the size of the receive buffer; with CAP_NET_ADMIN also beyond net.core.rmem_max."""
        so_rcvbufforce = 33  # not in Python's socket module
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def set_filter(self, program: Sequence[tuple[int, int, int, int]]) -> None:
        """Have the kernel drop messages refused by a classic BPF program with instructions (code, jt, jf, k)."""
        so_attach_filter = 26
        code = ctypes.create_string_buffer(b"".join(_BPF.pack(*instruction) for instruction in program))
        self._socket.setsockopt(
            socket.SOL_SOCKET, so_attach_filter, struct.pack("@HP", len(program), ctypes.addressof(code))
        )

    def send(self, data: bytes) -> None:
        """Send the requests in `data`."""
        self._socket.send(data)

    def receive_many(self, inbox: Inbox, count: int, start: int = 0) -> npt.NDArray[np.int64]:
        """Receive at most `count` waiting datagrams into an inbox; see `Inbox.fill`."""
        return inbox.fill(self._socket.fileno(), count, start)

    def receive(self) -> bytes:
        """Return one datagram; BlockingIOError if none is waiting."""
        return self._socket.recv(1 << 16)

    def close(self) -> None:
        """Close the socket; can be called twice."""
        self._socket.close()


class GenericSocket(NetlinkSocket):
    """A socket to the kernel's generic netlink.

    The kernel answers a request while it is being sent, so the answers are there when `send` returns.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_GENERIC)

    def family(self, name: str) -> int:
        """Return the number of a generic netlink family; BackendUnavailable if this kernel lacks it."""
        request = pack_attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0")
        self.send(pack_request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1, request))
        for kind, _, payload in messages(self.receive()):
            if kind == NLMSG_ERROR:
                code = error_code(payload)
                if code == errno.ENOENT:
                    raise BackendUnavailable(f"this kernel has no {name} interface (CONFIG_{name})")
                raise BackendUnavailable(f"generic netlink family {name}: {os.strerror(code)}")
            for attribute, offset, length in attributes(payload, GENERIC.size):
                if attribute == CTRL_ATTR_FAMILY_ID and length == 2:
                    number: int = struct.unpack_from("=H", payload, offset)[0]
                    return number
        raise BackendUnavailable(f"generic netlink family {name}: the kernel gave no number")
