"""CURVE encryption and peer keys, for connecting sockets; `authenticator` is for listening ones.

Keys are read from files (colmet.common.config.keys); the wire protocol is ZeroMQ's, RFC 26/CurveZMQ.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import zmq

from colmet.common.config import cli
from colmet.common.config.keys import DIRECTORY, KeyPair, default, read_pair, read_public
from colmet.common.errors import ConfigError

# A listener without our key sends nothing, and closes the connection after its own handshake timeout.
HANDSHAKE_MS = 10_000
COLLECTOR = "collector.key"
OFF = "encryption is off: data is sent in clear text to any host at this address; set up keys with `colmet enrol`"


def new_pair() -> KeyPair:
    """Return a new random key pair."""
    _need_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def check_pair(pair: KeyPair, option: str) -> KeyPair:
    """Return `pair`; ConfigError if its two keys do not belong together, or this libzmq has no CURVE."""
    _need_curve()
    if zmq.curve_public(pair.secret.encode("ascii")).decode("ascii") != pair.public:
        raise ConfigError(f"{option}: the public key in it does not belong to the secret one; make a new pair")
    return pair


def read_own_pair(path: str, option: str, uid: int | None = None) -> KeyPair:
    """Return the checked key pair in a file of the user `uid`; ConfigError as for `read_pair` and `check_pair`."""
    return check_pair(read_pair(path, option, uid), f"{option} {path}")


def _need_curve() -> None:
    if not zmq.has("curve"):
        raise ConfigError("the installed libzmq was built without CURVE; install one with libsodium (Debian's has it)")


class Client(NamedTuple):
    """Keys of a connecting socket: its own pair, and the only key accepted at the other end."""

    pair: KeyPair
    server: str

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Set up a socket, before it connects."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.pair.public.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server.encode("ascii"))
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)


def add_options(parser: cli.Options, secret: str = "node.secret") -> None:
    """Declare the options of the node, and of other senders, with another file for the `secret`."""
    parser.add_argument(
        "--zeromq-curve-secret",
        metavar="FILE",
        default=default(secret),
        help=cli.Rare(
            "encrypt and authenticate with this key pair, made by `colmet enrol` on the collector's machine; '': no "
            f"keys (default: {DIRECTORY}/{secret}, if it exists)"
        ),
    )
    parser.add_argument(
        "--zeromq-curve-collector",
        metavar="FILE",
        default=default(COLLECTOR),
        help=cli.Rare(
            "public key of the collector, or of all collectors, which share one pair (default: "
            f"{DIRECTORY}/{COLLECTOR}, if it exists)"
        ),
    )


class KeyFiles(NamedTuple):
    """The paths of this machine's pair and of the others' public keys: the collector's file, or the nodes' folder."""

    secret: str
    others: str


def key_files(secret: str | None, others: str | None, unused: str | None, option: str, needs: str) -> KeyFiles | None:
    """Return the files of the options; None for no security, also with the `unused` default of the others alone.

    Raises:
        ConfigError: only one of them is given.
    """
    if not secret and (not others or others == unused):
        return None
    if not secret or not others:
        raise ConfigError(f"{option if secret else '--zeromq-curve-secret'} is missing: encryption requires {needs}")
    return KeyFiles(secret, others)


def files(options: argparse.Namespace) -> KeyFiles | None:
    """Return the files of a node's options, as `key_files`."""
    needs = "this machine's pair and the collector's public key; `colmet enrol` makes both"
    secret, collector = options.zeromq_curve_secret, options.zeromq_curve_collector
    # unused: the collector's machine has its own public key, too
    return key_files(secret, collector, default(COLLECTOR), "--zeromq-curve-collector", needs)


def from_options(options: argparse.Namespace, uid: int | None = None) -> Client | None:
    """Return the keys of the options of `add_options`, of files of the user `uid`; None for no security.

    Raises:
        ConfigError: only one of the options is given, or a file cannot be used.
    """
    found = files(options)
    if found is None:
        return None
    pair = read_own_pair(found.secret, "--zeromq-curve-secret", uid)
    return Client(pair, read_public(found.others, "--zeromq-curve-collector"))
