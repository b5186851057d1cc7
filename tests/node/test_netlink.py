from __future__ import annotations

import contextlib
import errno
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.node.kernel import netlink


def test_a_request_is_laid_out_as_the_kernel_wants_it():
    attribute = netlink.pack_attribute(1, b"abcde")
    assert attribute == struct.pack("=HH", 9, 1) + b"abcde\0\0\0"
    request = netlink.pack_request(20, 3, 7, attribute)
    assert request[:16] == struct.pack("=IHHII", 32, 20, 1, 7, 0)
    assert request[16:20] == struct.pack("=BBH", 3, 1, 0)


def test_attributes_and_messages_are_read_back():
    data = netlink.pack_attribute(1, b"abcde") + netlink.pack_attribute(0x8002, b"xy")
    assert [(kind, data[at : at + size]) for kind, at, size in netlink.attributes(data)] == [(1, b"abcde"), (2, b"xy")]
    first, second = netlink.pack_request(20, 3, 7, data), netlink.pack_request(21, 3, 8, b"")
    found = list(netlink.messages(first + second))
    assert [(kind, sequence) for kind, sequence, _ in found] == [(20, 7), (21, 8)]
    assert found[0][2][4:] == data


@pytest.mark.parametrize("length", [0, 3, 200])
def test_a_length_that_does_not_fit_is_a_parse_error(length):
    with pytest.raises(ParseError):
        list(netlink.attributes(struct.pack("=HH", length, 1) + b"abcd"))
    with pytest.raises(ParseError):
        list(netlink.messages(struct.pack("=IHHII", length, 1, 0, 0, 0) + b"abcd"))


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data):
    for read in (netlink.attributes, netlink.messages):
        with contextlib.suppress(ParseError):
            list(read(data))


def test_errors_carry_their_errno():
    assert netlink.error_code(struct.pack("=i", -errno.ESRCH) + b"\0" * 16) == errno.ESRCH
    assert netlink.error_code(struct.pack("=i", 0)) == 0
    with pytest.raises(ParseError):
        netlink.error_code(b"\0")


@pytest.mark.live
def test_live_the_kernel_names_its_families():
    socket = netlink.GenericSocket()
    try:
        assert socket.family("nlctrl") == netlink.GENL_ID_CTRL
        with pytest.raises(BackendUnavailable, match="no NOSUCH interface"):
            socket.family("NOSUCH")
    finally:
        socket.close()
        socket.close()


@pytest.mark.live
def test_live_many_answers_are_taken_by_one_call():
    socket = netlink.GenericSocket()
    inbox = netlink.Inbox(8, 512)
    try:
        name = netlink.pack_attribute(netlink.CTRL_ATTR_FAMILY_NAME, b"nlctrl\0")
        requests = b"".join(
            netlink.pack_request(netlink.GENL_ID_CTRL, netlink.CTRL_CMD_GETFAMILY, n, name) for n in range(5)
        )
        socket.send(requests)
        lengths = socket.receive_many(inbox, 8)
        assert len(lengths) == 5
        for n, length in enumerate(lengths):
            ((kind, sequence, _),) = netlink.messages(inbox.slots[n, :length].tobytes())
            assert (kind, sequence) == (netlink.GENL_ID_CTRL, n)
        assert len(socket.receive_many(inbox, 8)) == 0, "none is there: it does not wait"
    finally:
        socket.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        inbox.fill(-1, 1)
