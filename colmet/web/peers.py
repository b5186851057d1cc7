"""Who is at the other end of a connection: its address, on this machine its user, or the client that a proxy names."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, Union

from colmet.collector.web_launcher import Proxy
from colmet.web.limits import network

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ASKED = struct.Struct("=BBBBI2s2s16s16sIII")  # struct inet_diag_req_v2 (include/uapi/linux/inet_diag.h)
_NO_COOKIE = 0xFFFFFFFF
_UID_AT = _HEADER.size + 4 + 48 + 12  # idiag_uid in struct inet_diag_msg
_ANSWER_S = 1.0  # the kernel answers while it is asked
_PROXY = "proxy "

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class Peers:
    """Says what counts as one peer, for bounds on what it may take from the others.

    Args:
        proxies: networks, and uids of this machine, of proxies whose word on their clients counts.
        kernel: a socket that asks the kernel for users as this machine knows them, where this process is in a user
            namespace of its own; it makes one for each question without.
    """

    def __init__(self, proxies: Iterable[Proxy] = (), kernel: socket.socket | None = None) -> None:
        self._networks = tuple([one for one in proxies if not isinstance(one, int)])
        self._uids = frozenset([one for one in proxies if isinstance(one, int)])
        self._kernel = kernel
        self._asked = 0

    def key(self, connection: socket.socket, address: Any) -> str:
        """Return what counts as one peer: the address, an IPv6 /64, or on loopback the user of the other end.

        All users of this machine have the same address; where the kernel does not say whose a connection is, they count
        as one. That of a proxy has `is_proxy`.

        Args:
            connection: accepted.
            address: of the peer, as accept gives it.
        """
        remote, key, is_proxy = _ip(str(address[0])), network(str(address[0])), False
        if remote is not None and remote.is_loopback:
            with contextlib.suppress(OSError, struct.error, IndexError, ValueError):
                uid = self._uid(connection.getpeername(), connection.getsockname())
                key, is_proxy = f"uid {uid}", uid in self._uids
        elif remote is not None:
            is_proxy = self._is_trusted(remote)
        return f"{_PROXY}{key}" if is_proxy else key

    @staticmethod
    def is_proxy(key: str) -> bool:
        """Return whether a peer is a proxy whose word on its clients counts."""
        return key.startswith(_PROXY)

    def client(self, key: str, forwarded: Sequence[str]) -> str:
        """Return what counts as one peer of a request.

        Args:
            key: of the connection.
            forwarded: all values of X-Forwarded-For. Each proxy adds the address of its own client at the end, so the
                last one that is no proxy counts, and what that client has written before counts for nothing.
        """
        if not self.is_proxy(key):
            return key
        for text in reversed([word.strip() for value in forwarded for word in value.split(",")]):
            remote = _ip(text)
            if remote is None:
                break
            if not self._is_trusted(remote):
                return network(str(remote))
        return key

    def _is_trusted(self, remote: Address) -> bool:
        return any(remote in one for one in self._networks)

    def _uid(self, peer: Any, own: Any) -> int:
        """The user of the socket at `peer` that is connected to `own`.

        Raises:
            OSError: the kernel does not say; ENOENT where the socket has been closed.
        """
        ends = [ipaddress.ip_address(str(end[0]).partition("%")[0]) for end in (peer, own)]
        ends = [getattr(end, "ipv4_mapped", None) or end for end in ends]
        family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
        ports = [struct.pack(">H", end[1]) for end in (peer, own)]
        source, target = [end.packed.ljust(16, b"\0") for end in ends]
        asked = _ASKED.pack(
            family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, *ports, source, target, 0, _NO_COOKIE, _NO_COOKIE
        )
        answer = self._ask(asked)
        kind = _HEADER.unpack_from(answer)[1]
        if kind != _SOCK_DIAG_BY_FAMILY:
            raise OSError(-struct.unpack_from("=i", answer, _HEADER.size)[0], "the kernel does not say whose it is")
        uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
        return uid

    def _ask(self, asked: bytes) -> bytes:
        """The kernel's answer to a question; an earlier one that was given up is passed over."""
        self._asked = self._asked % 0xFFFFFFFF + 1
        with contextlib.ExitStack() as stack:
            kernel = self._kernel
            if kernel is None:
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)
                kernel = stack.enter_context(made)
            kernel.settimeout(_ANSWER_S)
            header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._asked, 0)
            kernel.sendto(header + asked, (0, 0))
            until = time.monotonic() + _ANSWER_S
            while time.monotonic() < until:
                answer = kernel.recv(4096)
                if _HEADER.unpack_from(answer)[3] == self._asked:
                    return answer
        raise TimeoutError("the kernel does not answer")


def _ip(text: str) -> Address | None:
    """An address, None where the text is none; an IPv4 address in the form of IPv6 is one of IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
