"""Listening sockets: bound, guarded by an authenticator, and closed."""

from __future__ import annotations

from collections.abc import Mapping

import zmq

from colmet.common.errors import ConfigError
from colmet.common.transport import claims
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.uris import check_uri


class Listening:
    """A bound socket; base of the collector's ends.

    Args:
        kind: of the socket.
        uri: to bind; port ``*`` binds any free one, then found in `uri`.
        option: of the URI, for errors.
        authenticator: of the connections, shared with other sockets; one of its own without.
        settings: of the socket.
        claimed_uri: claims this port from a collector that uses it by default; empty for none.
        others: what else may use the address, for errors.

    Raises:
        ConfigError: the URI cannot be bound.
    """

    def __init__(
        self,
        kind: int,
        uri: str,
        option: str,
        authenticator: Authenticator | None,
        settings: Mapping[zmq.SocketOption, int],
        claimed_uri: str = "",
        others: str = "",
    ) -> None:
        check_uri(uri, option)
        self._authenticator = Authenticator() if authenticator is None else authenticator
        self._owns_authenticator = authenticator is None
        self._socket = self._authenticator.context.socket(kind)
        self._guarded = self._authenticator.guard(self._socket)
        for setting, value in {zmq.IPV6: int("[" in uri), **settings}.items():
            self._socket.setsockopt(setting, value)
        self._is_tcp = uri.startswith("tcp:")
        try:
            claims.bind(lambda: self._authenticator.bind(self._guarded, uri, option), claimed_uri)
        except ConfigError:
            self.close()
            raise
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(
                f"{option} {uri}: {err}; give an address of this machine and a port that nothing else uses{others}"
            ) from err
        self.uri: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Close; idempotent."""
        if not self._socket.closed:
            self._authenticator.release(self._guarded)
            self._socket.close()
        if self._owns_authenticator:
            self._authenticator.close()
