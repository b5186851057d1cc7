"""Checks of addresses, ports and keys."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from typing import NamedTuple

from colmet.commands.doctor.target import Target
from colmet.common.daemon.checks import Finding, Level, fail, good, severe, take_warnings, warn
from colmet.common.errors import ConfigError
from colmet.common.text import counted

CONNECT_S = 2.0
GREETING_S = 8.0  # a busy machine connects at once, and its programs are slow
WAITED_S, SETTLED_S = 3.0, 10.0  # usual and longest time for the acceptance of a node
_MADE_FOR = re.compile(rb"# Colmet: the secret key of ([^\s:]+)\. ")
_ADDRESS = re.compile(r"tcp://(?:[^;]+;)?([^;]+):(\d+|\*)", re.ASCII)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# RFC 23, ZMTP 3.0: both ends send a signature at once, then the version; the peer sends the rest.
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_GREETING_BYTES = 64


class TcpAddress(NamedTuple):
    """An address and port of TCP."""

    host: str
    port: int


def address_of(uri: str) -> TcpAddress | None:
    """Return the address of a URI of ZeroMQ; None if it is not of TCP."""
    match = _ADDRESS.fullmatch(uri)
    if match is None:
        return None
    return TcpAddress(match[1].strip("[]"), 0 if match[2] == "*" else int(match[2]))


class NoGreetingError(OSError):
    """A listener accepts connections and sends nothing."""


def greet(address: TcpAddress) -> str:
    """Return the security mechanism of the listener, such as NULL or CURVE; "" if it does not speak ZeroMQ.

    Sends the start of a greeting and closes: the listener counts an unfinished handshake.

    Raises:
        NoGreetingError: the listener sends nothing.
        OSError: no listener, or an unknown host name.
    """
    with socket.create_connection(address, CONNECT_S) as connection:
        connection.settimeout(GREETING_S)
        try:
            connection.sendall(_SIGNATURE + b"\x03")
            greeting = b""
            while len(greeting) < _GREETING_BYTES:
                more = connection.recv(_GREETING_BYTES - len(greeting))
                if not more:
                    break
                greeting += more
                if greeting[0] != 0xFF:
                    return ""
        except (TimeoutError, socket.timeout) as err:
            raise NoGreetingError from err
        except OSError:
            return ""
    if len(greeting) < 32:
        return ""
    return greeting[12:32].rstrip(b"\0").decode("ascii", "replace")


# -- the node's connections to its collectors --


def check_collectors(target: Target) -> Iterator[Finding]:
    """Check each --zeromq-uri and the port of its acknowledgements: name, connection, listener and its keys."""
    from colmet.node.delivery.link import addresses

    options = target.options
    try:
        uplinks = addresses(options)
    except ConfigError as err:
        yield fail(str(err), "correct zeromq-uri")
        return
    if not uplinks:
        yield fail(
            "no collector is named: nothing is measured",
            'name it in /etc/colmet/node.toml, zeromq-uri = "tcp://HOST:5556", or run `colmet enrol '
            f"{socket.gethostname()}` on the collector's machine and copy what it makes to /etc/colmet/keys here",
        )
    locked = bool(options.zeromq_curve_secret)
    for uri, link in uplinks.items():
        finding = _reach(uri, locked)
        yield finding
        if finding.level != Level.FAIL and link and options.wire != "colmet06":
            second = _reach(link, locked)
            if second.level != Level.PASS:
                yield warn(
                    f"acknowledgements: {second.found}; batches under way when the collector stops are lost",
                    "open that port, too (it is the one after the data's), and see --zeromq-link-bind-uri there",
                )


def _reach(uri: str, locked: bool) -> Finding:
    address = address_of(uri)
    if address is None:
        path = uri.removeprefix("ipc://")
        if os.path.exists(path):
            return good(f"{uri}: there")
        return fail(f"{uri}: nothing listens there", "start colmet-collector, or correct zeromq-uri")
    host, port = address
    try:
        mechanism = greet(address)
    except socket.gaierror as err:
        return fail(
            f"{uri}: the name {host} is not known: {err.strerror}",
            f"correct zeromq-uri in /etc/colmet/node.toml, or have the name known (`getent hosts {host}`)",
        )
    except NoGreetingError:
        return fail(
            f"{uri}: accepts connections, and sends no greeting within {GREETING_S:g} s",
            f"it hangs, or its machine is overloaded: `colmet status collector` on {host}; or another program has the "
            f"port: `ss -ltnp 'sport = :{port}'` there",
        )
    except (TimeoutError, socket.timeout):
        return fail(
            f"{uri}: no answer within {CONNECT_S:g} s",
            f"is {host} up (`ping {host}`)? Then a firewall is in the way: open port {port} there",
        )
    except OSError as err:
        remedy = f'on {host}: `systemctl start colmet-collector`, with zeromq-bind-uri = "tcp://0.0.0.0:{port}"'
        if host in _LOOPBACK:
            remedy = (
                "this is the node itself: name the collector's machine in /etc/colmet/node.toml, zeromq-uri = "
                f'"tcp://HOST:{port}"; or start colmet-collector here'
            )
        return fail(f"{uri}: {err.strerror or err}", remedy)
    if not mechanism:
        return fail(
            f"{uri}: something else listens there, it does not speak ZeroMQ",
            f"correct zeromq-uri, or see what it is on {host}: `ss -ltnp 'sport = :{port}'`",
        )
    if locked and mechanism != "CURVE":
        return fail(
            f"{uri}: this node has keys, and the collector has none",
            "give the collector keys, too (`colmet keygen collector --if-missing` there, and restart it), or turn them "
            "off here: zeromq-curve-secret = '' in node.toml",
        )
    if not locked and mechanism == "CURVE":
        return fail(
            f"{uri}: the collector lets in known keys only, and this node has none",
            f"`colmet enrol {socket.gethostname()}` on the collector's machine makes them; copy them to "
            "/etc/colmet/keys here, and restart colmet-node",
        )
    return good(f"{uri}: a collector answers, {'with keys' if locked else 'without keys'}")


# -- keys --


def check_keys(target: Target) -> Iterator[Finding]:
    """Check the key files: complete, and readable by the daemon alone; and that the other side knows the key."""
    from colmet.common.transport import authenticator, curve

    options, uid = target.options, target.user.uid
    try:
        found = curve.files(options) if target.side == "node" else authenticator.files(options)
        if found is None:
            yield warn(
                "keys are off: what is sent is in clear text, and any host that reaches the collector can send",
                "set up keys: `colmet enrol NAME...` on the collector's machine",
            )
            return
        if target.side == "node":
            curve.from_options(options, uid)
        else:
            yield from _check_known(*found, uid)
    except ConfigError as err:
        text, _, remedy = str(err).rpartition("; ")
        yield severe(text or remedy, remedy if text else f"see /etc/colmet/{target.side}.toml")
        return
    secret = found.secret
    yield good(f"the pair in {secret} fits")
    name = made_for(secret) if target.side == "node" else ""
    if name not in ("", socket.gethostname()):
        yield fail(
            f"{secret} was made for {name}, and this host is {socket.gethostname()}: the collector refuses its data",
            f"`colmet enrol {socket.gethostname()}` on the collector's machine makes its own, which belong in "
            "/etc/colmet/keys here",
        )
    for one in target.collectors:
        waits = one["state"] in ("away", "not heard of yet") and one["since_s"] > WAITED_S
        if waits and _is_locked(one["uri"]):
            settled = one["state"] == "away" and one["since_s"] > SETTLED_S
            yield (fail if settled else warn)(
                f"{one['uri']} answers, and {'does not let' if settled else 'has not let'} this node in"
                f"{'' if settled else ' yet'}",
                f"`colmet enrol --replace {socket.gethostname()}` there makes new keys, which belong in "
                "/etc/colmet/keys here; and compare --zeromq-curve-collector with the collector's. Where that has just "
                "started, look again in a minute",
            )


def made_for(secret: str) -> str:
    """Return the host of a key pair, from the first line of its file; "" without one."""
    try:
        with open(secret, "rb") as file:
            match = _MADE_FOR.match(file.read(400))
    except OSError:
        return ""
    return match[1].decode("ascii", "replace") if match else ""


def _is_locked(uri: str) -> bool:
    address = address_of(uri)
    try:
        return address is not None and greet(address) == "CURVE"
    except OSError:
        return False


def _check_known(secret: str, nodes: str, uid: int) -> Iterator[Finding]:
    """Check the collector's key pair and the directory of the nodes' keys, with the rights of the user `uid`."""
    from colmet.common.config.keys import KnownKeys
    from colmet.common.transport.curve import read_own_pair

    read_own_pair(secret, "--zeromq-curve-secret", uid)
    known = KnownKeys(nodes, "--zeromq-curve-nodes")
    for text in take_warnings():
        yield warn(text.partition(": ")[2] or text, "`colmet enrol --replace NAME` makes new keys for that node")
    if not len(known):
        yield fail(f"no key is in {nodes}: no node is admitted", "`colmet enrol NAME...` makes keys for nodes")
    else:
        yield good(f"{counted(len(known), 'keys')} of nodes in {nodes}")
