"""Forks, from the kernel's process events connector: the parent of each new task.

Source: Linux include/uapi/linux/cn_proc.h and connector.h. Only outside of containers; needs CAP_NET_ADMIN before
Linux 6.6.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

import numpy as np

from colmet.common.errors import BackendUnavailable
from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel.netlink import HEADER, Inbox, NetlinkSocket

NETLINK_CONNECTOR = 11
CN_IDX_PROC = CN_VAL_PROC = 1
PROC_CN_MCAST_LISTEN = 1
PROC_EVENT_NONE = 0
PROC_EVENT_FORK = 1
NLMSG_DONE = 3

_CONNECTOR = struct.Struct("=IIIIHH")  # cn_msg: index, value, sequence, acknowledged, length, flags
_LISTEN = struct.Struct("=I")
_WHAT = HEADER.size + _CONNECTOR.size  # offset of proc_event; its kind comes first
_DATA = _WHAT + 16
_FORK = 4  # numbers of 4 bytes: parent's thread, parent process, child's thread, child's process

# Forks only: every exec, exit, renaming and change of owner of the machine would come, too. A load by a BPF program
# gives the bytes in network order.
_ONLY_FORKS = [
    (0x20, 0, 0, _WHAT),  # load 4 bytes
    (0x15, 1, 0, socket.ntohl(PROC_EVENT_NONE)),  # skip one instruction, if equal: the answer to `listen`
    (0x15, 0, 1, socket.ntohl(PROC_EVENT_FORK)),  # skip none, if equal, else one
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of the message
    (0x06, 0, 0, 0),  # take none
]
_NO_FORKS: Ints = np.empty((0, _FORK), dtype=np.int64)


class ForkEvents:
    """Receiver of every fork on the machine; the inbox is only used within `receive`.

    Attributes:
        events: number of forks received.
        overflows: number of times that the socket's buffer was full, and forks were lost.

    Raises:
        BackendUnavailable: a kernel without the connector (CONFIG_PROC_EVENTS), or no permission for it.
    """

    BUFFER_BYTES = 64 << 20

    def __init__(self, inbox: Inbox) -> None:
        self.events = 0
        self.overflows = 0
        self._inbox = inbox
        self._socket = NetlinkSocket(NETLINK_CONNECTOR, 1 << (CN_IDX_PROC - 1))
        try:
            self._socket.set_filter(_ONLY_FORKS)
            self._socket.set_receive_buffer(self.BUFFER_BYTES)
            self._listen()
        except BaseException as err:
            self._socket.close()
            if isinstance(err, OSError):
                where = " in this network namespace" if err.errno == errno.ECONNREFUSED else ""
                raise BackendUnavailable(f"the kernel reports no forks{where}: {err}") from err
            raise

    def _listen(self) -> None:
        payload = _CONNECTOR.pack(CN_IDX_PROC, CN_VAL_PROC, 0, 0, _LISTEN.size, 0) + _LISTEN.pack(PROC_CN_MCAST_LISTEN)
        self._socket.send(HEADER.pack(HEADER.size + len(payload), NLMSG_DONE, 0, 0, os.getpid()) + payload)
        while True:  # events may come before the answer
            try:
                answer = self._socket.receive()
            except BlockingIOError:
                raise BackendUnavailable(
                    "the kernel reports no forks: it does so outside of containers, with CONFIG_PROC_EVENTS"
                ) from None
            if len(answer) >= _DATA + 4 and struct.unpack_from("=I", answer, _WHAT)[0] == PROC_EVENT_NONE:
                code = struct.unpack_from("=I", answer, _DATA)[0]
                if code:
                    raise BackendUnavailable(f"the kernel reports no forks: {os.strerror(code)}")
                return

    def receive(self) -> Ints:
        """Return the received forks, in their order.

        Returns:
            Shape (n, 4): parent's thread, parent process, child's thread, child's process. The parent of a thread is
            its process's parent.
        """
        parts = []
        while True:
            try:
                lengths = self._socket.receive_many(self._inbox, len(self._inbox.slots))
            except OSError as err:
                if err.errno != errno.ENOBUFS:
                    raise
                self.overflows += 1
                continue
            if not len(lengths):
                break
            slots = self._inbox.slots[: len(lengths)]
            numbers = np.ndarray(
                (len(slots), _FORK), "=u4", buffer=slots, offset=_DATA, strides=(slots.strides[0], 4)
            ).astype(np.int64)
            kinds = np.ndarray((len(slots),), "=u4", buffer=slots, offset=_WHAT, strides=(slots.strides[0],))
            # the answer to another program's start of listening is sent to all
            whole = (lengths >= _DATA + 4 * _FORK) & (kinds == PROC_EVENT_FORK)
            self.events += int(whole.sum())
            parts.append(numbers if whole.all() else numbers[whole])
            if len(slots) < len(self._inbox.slots):
                break
        if len(parts) > 1:
            return np.concatenate(parts)
        return parts[0] if parts else _NO_FORKS

    def close(self) -> None:
        """Stop listening; can be called twice."""
        self._socket.close()
