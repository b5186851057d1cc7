"""Sockets between the daemons; the only package that imports zmq.

No call blocks longer than its timeout.
"""

from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client, new_pair
from colmet.common.transport.ports import Socket, check_target, check_uri, link_uri, wait
from colmet.common.transport.sockets import MAX_RECEIVED_BYTES, Called, LinkClient, LinkServer, Pull, Push, Received

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
