"""The leaders of projects, who see the archived jobs of their projects: from a file, and from the batch system."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ColmetError, ConfigError
from colmet.web import credentials
from colmet.web.credentials import check_name

log = logging.getLogger(__name__)

LOOK_S = 1.0  # min time between checks of the file
ASK_S = 3600.0  # between questions to the batch system
AGAIN_S = 600.0  # after a failure
KEPT_S = 86400.0  # lifetime of an answer without a later one: a right must not outlive its reason for long
LONGEST_PROJECT = 255
Projects = Mapping[str, frozenset[str]]  # leaders by project


def parse_leaders(path: str) -> tuple[Projects, credentials.Mark]:
    """Return the leaders in a file, and its mark: lines such as ``physics: alice, bob``, and comments after #.

    Raises:
        ConfigError: the file cannot be read, others may write it, or a line is malformed.
    """
    lines, status = credentials.read_lines(path)
    found: dict[str, frozenset[str]] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        project, colon, listed = text.partition(":")
        project = project.strip()
        try:
            if not colon or not 0 < len(project) <= LONGEST_PROJECT or not project.isprintable():
                raise ValueError("it is not PROJECT: USER, USER")
            if project in found:
                raise ValueError(f"another line has the project {project!r}")
            found[project] = frozenset([check_name(name.strip()) for name in listed.split(",")])
        except ValueError as err:
            raise ConfigError(f"{path}:{number}: {err}") from err
    return found, credentials.mark_of(status)


class Leaders:
    """The projects of each leader; never waits for the batch system.

    Args:
        path: of the file; None without one.
        ask: asks the batch system in a thread; None without one.
        clock: returns seconds of the monotonic clock.
        count: counts an event by name.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self,
        path: str | None = None,
        ask: Callable[[], Projects] | None = None,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str], int] = lambda _: 1,
    ) -> None:
        self._path = path
        self._ask = ask
        self._clock = clock
        self._count = count
        self._file: Projects = {}
        self._mark: credentials.Mark | None = None
        if path is not None:
            self._file, self._mark = parse_leaders(path)
        self._looked = clock()
        self._batch: Projects = {}
        self._until = 0.0  # of the answer of the batch system
        self._due = clock()
        self._asking: threading.Thread | None = None

    def projects(self, user: str) -> frozenset[str]:
        """Return the projects that a user leads."""
        self._look()
        now = self._clock()
        if self._ask is not None and now >= self._due and self._asking is None:
            self._due = now + ASK_S
            self._asking = threading.Thread(target=self._refresh, args=(self._ask,), name="leaders", daemon=True)
            self._asking.start()
        sources = [self._file, *([self._batch] if now < self._until else [])]
        return frozenset([project for source in sources for project, names in source.items() if user in names])

    def _refresh(self, ask: Callable[[], Projects]) -> None:
        try:
            self._batch, self._until = ask(), self._clock() + KEPT_S
        except ColmetError as err:
            self._due = self._clock() + AGAIN_S
            count = self._count("coordinators_failures")
            if powers_of_ten(count):
                log.error("coordinators of accounts are not known failures=%d: %s", count, err)
        finally:
            self._asking = None

    def _look(self) -> None:
        """Reload the file if it has changed."""
        now = self._clock()
        if self._path is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        mark = credentials.mark(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._file, self._mark = parse_leaders(self._path)
        except ConfigError as err:
            self._count("users_failures")
            log.error("leaders of projects not read again, the previous ones remain: reason=%s", err)
            return
        log.info("leaders of projects read again: projects=%d", len(self._file))
