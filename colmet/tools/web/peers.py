"""Who is at the other end of a connection: its address, or on this machine its user."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from typing import Any

from colmet.tools.web.limits import network

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ASKED = struct.Struct("=BBBBI2s2s16s16sIII")  # struct inet_diag_req_v2 (include/uapi/linux/inet_diag.h)
_NO_COOKIE = 0xFFFFFFFF
_UID_AT = _HEADER.size + 4 + 48 + 12  # idiag_uid in struct inet_diag_msg


def peer_of(connection: socket.socket, address: Any) -> str:
    """Return what counts as one peer: the address, an IPv6 /64, or on loopback the user of the other end.

    All users of this machine have the same address; where the kernel does not say whose a connection is, they count as
    one.

    Args:
        connection: accepted.
        address: of the peer, as accept gives it.
    """
    try:
        remote = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return network(str(address[0]))
    mapped = getattr(remote, "ipv4_mapped", None)
    if not (mapped or remote).is_loopback:
        return network(str(address[0]))
    with contextlib.suppress(OSError, struct.error, IndexError, ValueError):
        return f"uid {_uid(connection.getpeername(), connection.getsockname())}"
    return network(str(address[0]))


def _uid(peer: Any, own: Any) -> int:
    """The user of the socket at `peer` that is connected to `own`.

    Raises:
        OSError: the kernel does not say; ENOENT where the socket has been closed.
    """
    ends = [ipaddress.ip_address(str(end[0]).partition("%")[0]) for end in (peer, own)]
    ends = [getattr(end, "ipv4_mapped", None) or end for end in ends]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    ports = [struct.pack(">H", end[1]) for end in (peer, own)]
    source, target = [end.packed.ljust(16, b"\0") for end in ends]
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, *ports, source, target, 0, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)  # it answers while it is asked
        kernel.sendto(
            _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + asked, (0, 0)
        )
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        raise OSError(-struct.unpack_from("=i", answer, _HEADER.size)[0], "the kernel does not say whose it is")
    uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return uid
