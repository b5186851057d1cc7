"""Values of jobs measured by one backend and needed by another.

A backend names the values it provides in `provides` and the values it reads in `needs`. Backends never import each
other: the agent runs each after the providers of its values, and connects them here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from colmet.common.errors import ConfigError
from colmet.node.backend import InputBackend

log = logging.getLogger(__name__)


def connect(backends: Sequence[InputBackend]) -> list[InputBackend]:
    """Connect backends with the providers of the values they need; log values without a provider.

    Returns:
        The backends in calling order: each after its providers, otherwise as given.

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
