"""Sockets between the daemons; the only package that imports zmq.

No call blocks longer than its timeout.
"""

from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client, new_pair
from colmet.common.transport.data import MAX_RECEIVED_BYTES, Pull, Push, Received
from colmet.common.transport.link import Called, LinkClient, LinkServer
from colmet.common.transport.uris import check_target, check_uri, link_uri
from colmet.common.transport.waiting import Socket, wait

__all__ = [
    "MAX_RECEIVED_BYTES",
    "Authenticator",
    "Called",
    "Client",
    "LinkClient",
    "LinkServer",
    "Pull",
    "Push",
    "Received",
    "Socket",
    "check_target",
    "check_uri",
    "link_uri",
    "new_pair",
    "wait",
]
