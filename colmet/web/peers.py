"""Identify the client of a request: by address, by user on this machine, or by the header of a proxy."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

from colmet.collector.web_options import Proxy
from colmet.web.limits import Address, network, parse_address

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_REQUEST = struct.Struct("=BBBBI2s2s16s16sIII")  # struct inet_diag_req_v2 (include/uapi/linux/inet_diag.h)
_NO_COOKIE = 0xFFFFFFFF
_UID_AT = _HEADER.size + 4 + 48 + 12  # idiag_uid in struct inet_diag_msg
_ANSWER_S = 1.0  # the kernel answers at once


class Peers:
    """The identification of clients, so that bounds on one client do not affect others.

    Args:
        proxies: networks, and uids of this machine, of trusted proxies: their X-Forwarded-For counts.
        kernel: a netlink socket from outside the user namespace of this process, to see the users of this machine; None
            opens a socket for each query.
    """

    def __init__(self, proxies: Iterable[Proxy] = (), kernel: socket.socket | None = None) -> None:
        self._networks = tuple([one for one in proxies if not isinstance(one, int)])
        self._uids = frozenset([one for one in proxies if isinstance(one, int)])
        self._kernel = kernel
        self._questions = 0

    def client(self, scope: Mapping[str, Any]) -> str:
        """Return the key of a client: an address, an IPv6 /64, or on loopback the user of the other end.

        All users of this machine have the same address; if the kernel does not name the user of a connection, they
        count as one. At the other end of a Unix socket is a proxy. Each proxy adds the address of its own client at the
        end of X-Forwarded-For: the last address not of a trusted proxy counts.
        """
        peer = scope.get("client")
        if peer is None:
            key, is_proxy = "proxy", True
        else:
            remote, key = parse_address(str(peer[0])), network(str(peer[0]))
            is_proxy = remote is not None and self._is_trusted(remote)
            if remote is not None and remote.is_loopback:
                with contextlib.suppress(OSError, struct.error, IndexError, ValueError, TypeError):
                    uid = self._uid(peer, scope["server"])
                    key, is_proxy = f"uid {uid}", uid in self._uids
        return self._forwarded(scope, key) if is_proxy else key

    def _forwarded(self, scope: Mapping[str, Any], key: str) -> str:
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        for text in reversed([word.strip() for value in values for word in value.split(",")]):
            remote = parse_address(text)
            if remote is None:
                break
            if not self._is_trusted(remote):
                return network(str(remote))
        return key

    def _is_trusted(self, remote: Address) -> bool:
        return any(remote in one for one in self._networks)

    def _uid(self, peer: Any, own: Any) -> int:
        """Return the uid of the socket at `peer`, connected to `own`.

        Raises:
            OSError: the kernel does not name the user; ENOENT for a closed socket.
        """
        ends = [end for one in (peer, own) if (end := parse_address(str(one[0]))) is not None]
        family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
        ports = [struct.pack(">H", end[1]) for end in (peer, own)]
        source, target = [end.packed.ljust(16, b"\0") for end in ends]
        asked = _REQUEST.pack(
            family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, *ports, source, target, 0, _NO_COOKIE, _NO_COOKIE
        )
        answer = self._ask(asked)
        kind = _HEADER.unpack_from(answer)[1]
        if kind != _SOCK_DIAG_BY_FAMILY:
            raise OSError(-struct.unpack_from("=i", answer, _HEADER.size)[0], "the kernel does not name the user")
        uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
        return uid

    def _ask(self, asked: bytes) -> bytes:
        """Send a query to the kernel, and return its answer; late answers to earlier queries are skipped."""
        self._questions = self._questions % 0xFFFFFFFF + 1
        with contextlib.ExitStack() as stack:
            kernel = self._kernel
            if kernel is None:
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)
                kernel = stack.enter_context(made)
            kernel.settimeout(_ANSWER_S)
            header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._questions, 0)
            kernel.sendto(header + asked, (0, 0))
            until = time.monotonic() + _ANSWER_S
            while time.monotonic() < until:
                answer = kernel.recv(4096)
                if _HEADER.unpack_from(answer)[3] == self._questions:
                    return answer
        raise TimeoutError("the kernel does not answer")
