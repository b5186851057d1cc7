"""CURVE: encryption, and who is at the other end. This module has the ends that connect; `door` has those that listen.

The keys are in files (colmet.common.keys); what is on the wire is ZeroMQ's own, RFC 26/CurveZMQ.
"""

from __future__ import annotations

import argparse

import zmq

from colmet.common import cli
from colmet.common.errors import ConfigError
from colmet.common.keys import Pair, read_pair, read_public

# A listener that does not know our key yet says nothing, and hangs up when its own time for a greeting is over.
HANDSHAKE_MS = 10_000
REMEDY = "`colmet keygen` makes keys, --zeromq-curve-secret and --zeromq-curve-collector use them"


def new_pair() -> Pair:
    """A pair of keys that nobody has had before."""
    _need_curve()
    public, secret = zmq.curve_keypair()
    return Pair(public.decode("ascii"), secret.decode("ascii"))


def check_pair(pair: Pair, option: str) -> Pair:
    """`pair`, if its two keys belong together.

    Raises:
        ConfigError: they do not, or this libzmq has no CURVE.
    """
    _need_curve()
    if zmq.curve_public(pair.secret.encode("ascii")).decode("ascii") != pair.public:
        raise ConfigError(f"{option}: the public key in it does not belong to the secret one; make a new pair")
    return pair


def _need_curve() -> None:
    if not zmq.has("curve"):
        raise ConfigError("the installed libzmq was built without CURVE; take one with libsodium (Debian's has it)")


class Client:
    """What a connecting socket needs: its own pair, and the one key that it accepts at the other end.

    Args:
        pair: of this machine.
        server: public key of whoever listens.
    """

    def __init__(self, pair: Pair, server: str) -> None:
        self._pair = pair
        self._server = server

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Set up a socket, before it connects."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._pair.public.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._server.encode("ascii"))
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)


def add_options(parser: cli.Options) -> None:
    """The options of the node."""
    parser.add_argument(
        "--zeromq-curve-secret",
        metavar="FILE",
        help="encrypt, and prove to the collector who this node is, with the pair of keys in FILE (`colmet keygen "
        "node` makes it: NAME.secret); takes --zeromq-curve-collector",
    )
    parser.add_argument(
        "--zeromq-curve-collector",
        metavar="FILE",
        help="public key of the collector (collector.key); no other is talked to. Several collectors share one pair",
    )


def from_options(options: argparse.Namespace) -> Client | None:
    """What the command line asks for; None where it asks for no security.

    Raises:
        ConfigError: only one of the options is given, or a file cannot be used.
    """
    secret, collector = options.zeromq_curve_secret, options.zeromq_curve_collector
    if not secret and not collector:
        return None
    if not secret or not collector:
        missing = "--zeromq-curve-collector" if secret else "--zeromq-curve-secret"
        raise ConfigError(f"{missing} is missing: to encrypt takes this node's pair and the collector's public key")
    pair = check_pair(read_pair(secret, "--zeromq-curve-secret"), f"--zeromq-curve-secret {secret}")
    return Client(pair, read_public(collector, "--zeromq-curve-collector"))
