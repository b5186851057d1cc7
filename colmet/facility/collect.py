"""One run: queries every selected source, one after the other; a failed one does not stop the others."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from colmet.batch.systems import BatchJob, BatchSystem
from colmet.common.errors import ColmetError
from colmet.facility import documents, machine
from colmet.facility.deadlines import Deadlines
from colmet.facility.documents import BATCH_FILE, HOST_FILE, JUPYTER_FILE, SSH_FILE, Document, DocumentGroup
from colmet.facility.jupyter import COFFEA_LABEL, COFFEA_NAMESPACE, Jupyter
from colmet.facility.machine import Disks, DisksSilent, Network
from colmet.facility.people import Logins, People

log = logging.getLogger(__name__)

MakeDocument = Callable[[str, BatchJob, str], Document]  # of the facility's name, a job, and the user's name

ENDED_S = 360  # age limit of finished jobs in seconds, for runs every five minutes


class Gathered(NamedTuple):
    """Result of one run."""

    groups: list[DocumentGroup]  # documents, in the order of sending
    failed: list[str]  # names of the sources with missing data


@dataclass
class Facility:
    """The selected sources; None are not selected."""

    cluster: str  # name of the facility
    login_node: str  # name of this machine in documents
    make_people: Callable[[], People]  # the filter and the names of users, for each run
    jupyter: tuple[Jupyter, str, str] | None = None  # with the site's namespace and label
    logins: Logins | None = None
    network: Network | None = None
    disks: Disks | None = None
    batch: Sequence[BatchSystem] = ()
    ended_s: int = ENDED_S  # age limit of finished jobs, in seconds
    deadlines: Deadlines = field(default_factory=Deadlines)

    def gather(self, go_on: Callable[[], bool] = lambda: True) -> Gathered:
        """Query every source, in a thread; once `go_on` returns False, the remaining ones are skipped, and failed.

        A history of jobs may take minutes, longer than systemd waits for a service to stop.
        """
        people = self.make_people()
        groups: dict[str, list[Document]] = {}
        failed: list[str] = []
        left_out = self._left_out()
        for name, file, source in self._sources(people):
            if not go_on():
                failed.append(name)
                log.info("skipped, the program ends: source=%s", name)
                continue
            log.info("collecting %s", name)
            found = groups.setdefault(file, [])
            before = len(found)
            try:
                found.extend(self.deadlines.call(name, math.inf, source, go_on))
            except ColmetError as err:
                failed.append(name)
                if isinstance(err, DisksSilent):
                    found += self._spaces(err.args[1])
                log.error("source failed: source=%s: %s", name, err)
            except Exception:  # a defect in one source must not cost the others
                failed.append(name)
                log.exception("source failed, a defect: source=%s", name)
            else:
                if self._left_out() > left_out:  # already logged
                    failed.append(name)
            left_out = self._left_out()
            for document in found[before:]:
                log.debug("document %s", json.dumps(document))
            log.info("collected %s: documents=%d", name, len(found) - before)
        if people.unknown:
            log.info("users skipped, this machine does not know them: users=%d", len(people.unknown))
        return Gathered([DocumentGroup(file, found) for file, found in groups.items()], failed)

    def _left_out(self) -> int:
        """Return the number of unusable items of the sources, already logged, so far."""
        last = 0 if self.logins is None else self.logins.failures
        odd = 0 if self.jupyter is None else self.jupyter[0].odd
        return last + odd + sum(system.skipped for system in self.batch)

    def _sources(self, people: People) -> Iterator[tuple[str, str, Callable[[], list[Document]]]]:
        cluster, node = self.cluster, self.login_node
        if self.jupyter is not None:
            jupyter, namespace, label = self.jupyter
            parts = ("jupyter-ml", namespace, label), ("jupyter-coffea", COFFEA_NAMESPACE, COFFEA_LABEL)
            for kind, where, by in parts:
                yield kind, JUPYTER_FILE, partial(self._notebooks, people, jupyter, kind, where, by)
        if self.logins is not None:
            logins = self.logins
            yield "ssh", SSH_FILE, lambda: [documents.ssh(cluster, node, people.shown(logins.users()))]
        if (network := self.network) is not None:
            yield "CPU", HOST_FILE, lambda: [documents.cpu(cluster, node, os.getloadavg()[0])]
            yield "MEM", HOST_FILE, lambda: [documents.memory(cluster, node, *machine.memory())]
            yield "NETWORK", HOST_FILE, lambda: [documents.network(cluster, node, network.traffic())]
        if (disks := self.disks) is not None:
            yield "DISK", HOST_FILE, lambda: self._spaces(disks.spaces())
        for system in self.batch:
            yield f"queues of {system.name}", BATCH_FILE, partial(self._queues, system)
            yield f"jobs of {system.name}", BATCH_FILE, partial(self._jobs, documents.job, system.jobs, people)
            ended = partial(system.ended, self.ended_s)
            yield f"ended jobs of {system.name}", BATCH_FILE, partial(self._jobs, documents.ended_job, ended, people)

    def _notebooks(self, people: People, jupyter: Jupyter, kind: str, namespace: str, label: str) -> list[Document]:
        return [documents.jupyter(kind, self.cluster, people.shown(jupyter.users(namespace, label)))]

    def _spaces(self, spaces: Iterable[documents.Space]) -> list[Document]:
        return [documents.disk(self.cluster, self.login_node, space) for space in spaces]

    def _queues(self, system: BatchSystem) -> list[Document]:
        return [documents.queue(self.cluster, queue) for queue in system.queues()]

    def _jobs(self, make: MakeDocument, read: Callable[[], Iterable[BatchJob]], people: People) -> list[Document]:
        shown = ((job, people.shown_one(job.user)) for job in read())
        return [make(self.cluster, job, user) for job, user in shown if user is not None]
