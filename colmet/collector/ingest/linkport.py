"""The port for acknowledgements: its choice, and its handover to another collector on this machine.

The default is the port after the data port. Where collectors of several clusters have consecutive ports, the next one
receives data there. It gets the port (`claims`), and a note in the journal's directory keeps this one from binding it
first after a reboot: a node of Colmet 0.6 connected to a link instead of its collector never connects again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from typing import NamedTuple

from colmet.common.errors import ConfigError
from colmet.common.transport import LinkServer, Socket, link_uri
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.claims import Claims

log = logging.getLogger(__name__)

NOTE = "link-port-given-up"
WAIT_S = 30.0  # for another collector that had the port before to start
_PAUSE_S = 0.2


class LinkPort(NamedTuple):
    """The bound port, where no option names it."""

    socket: Socket  # of the link
    claims: Claims  # of other collectors for the port
    directory: str  # of the journal; "" without one

    def give_up(self) -> None:
        """Note that another collector has the port; the caller closes the link."""
        self.claims.close()
        _note(self.directory)
        log.warning(
            "link given up, as another collector receives data on its port: nodes send the format of Colmet 0.6, "
            "and batches under way when the collector stops are lost; give --zeromq-link-bind-uri another port here, "
            "and --zeromq-link-uri to the nodes"
        )


def open_link(
    uri: str | None, data_uri: str, authenticator: Authenticator, directory: str
) -> tuple[LinkServer | None, LinkPort | None]:
    """Bind the link's socket and return its server, with the port if it may be given up; None without acknowledgements.

    Args:
        uri: address from an option, "" for no link, None for the port after the data port.
        data_uri: address of the data socket.
        authenticator: of the nodes' connections.
        directory: of the journal; "" without one.

    Raises:
        ConfigError: the address from the option cannot be bound.
    """
    if uri == "":
        log.info("no acknowledgements: batches under way when the collector stops are lost")
        return None, None
    if uri is not None:
        return LinkServer(uri, authenticator=authenticator), None
    uri = link_uri(data_uri)
    if _noted(directory) and _is_free(uri):
        log.warning("link waits up to %g s, for another collector that had its port before: uri=%s", WAIT_S, uri)
        until = time.monotonic() + WAIT_S
        while _is_free(uri) and time.monotonic() < until:
            time.sleep(_PAUSE_S)
    try:
        server = LinkServer(uri, authenticator=authenticator)
    except ConfigError as err:
        # no error: a site with an older configuration may run something else on this port
        log.warning("no acknowledgements: batches under way when the collector stops are lost: %s", err)
        _note(directory)
        return None, None
    if directory:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, NOTE))
    claims = None if server.is_held else Claims(server.uri)
    return server, LinkPort(server.socket, claims, directory) if claims is not None and claims.fd >= 0 else None


def _note(directory: str) -> None:
    if directory:
        with contextlib.suppress(OSError), open(os.path.join(directory, NOTE), "wb"):
            pass


def _noted(directory: str) -> bool:
    return bool(directory) and os.path.exists(os.path.join(directory, NOTE))


def _is_free(uri: str) -> bool:
    """Return whether no process listens at an address, a numeric one."""
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    if not uri.startswith("tcp://"):
        return False
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, int(port)))
        except OSError as err:
            return err.errno != errno.EADDRINUSE
        except OverflowError:  # the port after 65535
            return False
    return True
