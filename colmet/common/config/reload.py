"""Options that change while a daemon runs: by its configuration file and SIGHUP, or by a request."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from typing import Any

from colmet.common.config.configuration import Configuration
from colmet.common.errors import ConfigError

log = logging.getLogger(__name__)

# Prepares for a new value, and returns a function that puts it into effect; raises ConfigError if impossible.
Prepare = Callable[[Any], Callable[[], None]]


def at_once(take: Callable[[Any], None]) -> Prepare:
    """Return how to change an option that accepts every value."""
    return lambda value: lambda: take(value)


class Settings:
    """The options in effect, and changes of some of them at run time.

    For the daemon's main thread.

    Args:
        options: in effect.
        configuration: source of the options; None if no file can be read again.

    Attributes:
        reloads: number of times the file was read again.
        failures: number of these with an unusable file.
    """

    def __init__(self, options: argparse.Namespace, configuration: Configuration | None = None) -> None:
        self._options = options
        self._configuration = configuration
        self._prepares: dict[str, Prepare] = {"verbose": at_once(_set_verbosity)}
        self.reloads = self.failures = 0

    def add(self, prepares: Mapping[str, Prepare]) -> None:
        """Declare options that can change, by their names in argparse."""
        self._prepares.update(prepares)

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command line; empty if unknown."""
        return self._configuration.argv if self._configuration is not None else ()

    def refresh(self) -> None:
        """Read the configuration again before anything has begun: all options change.

        Raises:
            ConfigError: it cannot be used.
        """
        if self._configuration is not None:
            vars(self._options).update(vars(self._configuration.read_for_start()))

    def __contains__(self, name: str) -> bool:
        return name in self._prepares

    def value(self, name: str) -> Any:
        """Return the value in effect."""
        return getattr(self._options, name)

    def change(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Put new values into effect, all or none; return those that changed, as (old, new).

        Raises:
            ConfigError: one of them cannot be; nothing has changed.
        """
        changes = {name: (self.value(name), value) for name, value in values.items() if value != self.value(name)}
        commits = []
        for name, (_, value) in changes.items():
            prepare = self._prepares.get(name)
            if prepare is None:
                raise ConfigError(f"{self._named(name)} cannot be changed while this runs")
            commits.append((name, value, prepare(value)))
        for name, value, commit in commits:
            commit()
            setattr(self._options, name, value)
        return changes

    def reload(self) -> None:
        """Read the configuration file again, on SIGHUP. An unusable one changes nothing."""
        configuration = self._configuration
        if configuration is None or configuration.path is None:
            log.info("SIGHUP: nothing to read again, there is no --config")
            return
        self.reloads += 1
        try:
            wanted = vars(configuration.read_for_start())
            others = [n for n, v in wanted.items() if n not in self._prepares and v != getattr(self._options, n, v)]
            changes = self.change({name: value for name, value in wanted.items() if name in self._prepares})
        except ConfigError as err:
            self.failures += 1
            log.error("configuration not changed failures=%d: %s", self.failures, err)
            return
        changed = [f"{self._named(name)}: {old} -> {new}" for name, (old, new) in changes.items()]
        none = "nothing takes effect before a restart" if others else "nothing has changed"
        log.info("configuration read again %s: %s", configuration.path, "; ".join(changed) or none)
        if others:
            log.warning("configuration needs a restart: %s", ", ".join(sorted(map(self._named, others))))

    def counters(self) -> dict[str, int]:
        """Return the number of times the file was read again, and those with an unusable file."""
        return {"reloads": self.reloads, "failures": self.failures}

    def _named(self, name: str) -> str:
        return self._configuration.names.get(name, name) if self._configuration is not None else name


def verbosity(count: int) -> int:
    """Return the level of the log for a number of -v: WARNING, INFO, DEBUG, as in Colmet 0.6 (30 - 10 x count)."""
    return max(logging.DEBUG, logging.WARNING - 10 * count)


def _set_verbosity(count: int) -> None:
    logging.getLogger().setLevel(verbosity(count))
