"""Values of jobs that one backend measures and another one needs.

A backend names what it hands over in `provides` and what it reads in `needs`. Backends never import each other: the
agent runs each after those whose values it needs, and connects them here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from colmet.common.errors import ConfigError
from colmet.node.backend import InputBackend

log = logging.getLogger(__name__)


def connect(backends: Sequence[InputBackend]) -> list[InputBackend]:
    """Connect backends with those that provide the values they need; log what nobody provides.

    Returns:
        The backends in the order in which they are to be called: each after its providers, otherwise as given.

    Raises:
        ConfigError: two backends provide one value, or need each other's.
    """
    providers: dict[str, InputBackend] = {}
    for backend in backends:
        for name in backend.provides:
            if name in providers:
                raise ConfigError(f"the backends {providers[name].name} and {backend.name} both provide {name}")
            providers[name] = backend
    ordered: list[InputBackend] = []
    waiting = list(backends)
    while waiting:
        ready = next((one for one in waiting if not any(providers.get(name) in waiting for name in one.needs)), None)
        if ready is None:
            raise ConfigError(f"the backends {', '.join([one.name for one in waiting])} need values of each other")
        waiting.remove(ready)
        ordered.append(ready)
        for name in ready.needs:
            if name in providers:
                ready.use_value(name, providers[name].job_value(name))
            else:
                log.info("no backend provides a value that another needs backend=%s value=%s", ready.name, name)
    return ordered
