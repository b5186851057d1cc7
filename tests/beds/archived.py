"""Thirty jobs of a batch system as the job archive has them, with what else knows of them.

The kernel's accounts are those of the watcher, and the states those that the batch system's own commands print.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import NamedTuple

from tests.beds.bed import eventually
from tests.beds.programs import run

MB = 10**6
# The watcher's last look at a job is some milliseconds before its end, and Colmet's last reading is, too.
CPU_SLACK_S = 0.03
# The kernel reserves pages for a CPU in batches of 64, which count as used. In a job of a megabyte that is much.
MEMORY_SLACK = 2 * 64 * 4096
INDEX = "colmet_archive-jobs"  # where the database has whole jobs
KEY = ("job", "start")
LISTED = (*KEY, "user", "state", "exit_code", "project", "queue", "array", "hosts", "wall_s", "cpu_s", "memory_peak")


def holds(megabytes, seconds):
    """A command that fills more memory than this, and keeps it for this time."""
    return f"perl -e '$held = \"x\" x {megabytes * MB}; select undef, undef, undef, {seconds}'"


class Kind(NamedTuple):
    """Jobs that are submitted together.

    Attributes:
        name: of what they are.
        command: that they run.
        options: of the batch system.
        state: that the archive is to have of them; of an array, of each task.
        deleted: whether they are ended from outside, as soon as they have computed.
        is_brief: whether one may come and go between two looks of the agent.
    """

    name: str
    command: str
    options: tuple[str, ...] = ()
    state: str | tuple[str, ...] = "done"
    deleted: bool = False
    is_brief: bool = False


class Jobs:
    """The submitted jobs.

    Attributes:
        kinds: of each job, its kind, by the batch system's id.
        states: of each job, the state that the archive is to have.
        to_delete: ids of jobs to be ended from outside.
    """

    def __init__(self, bed):
        self.kinds = {}
        self.states = {}
        self.to_delete = []
        self._bed = bed

    def submit(self, kind):
        """Submit the jobs of a kind; return the number of the first."""
        first, *others = self._bed.submit(*kind.options, kind.command)
        ids = [str(job) for job in (first, *others)]
        states = kind.state
        if isinstance(states, str):
            states = [states] * len(ids)
        elif not others:  # Slurm prints the number of the array
            ids = [f"{first}_{place + 1}" for place in range(len(states))]
        assert len(ids) == len(states)
        self.kinds.update(dict.fromkeys(ids, kind))
        self.states.update(zip(ids, states))
        self.to_delete += [first] * kind.deleted
        return first


class Archive:
    """The archive of a running collector, in all the ways that it is read.

    Args:
        path: of its file.
        interface: of the collector.
        configuration: of the collector, a file; its archive is that of `server`, too.
        server: of a database that the collector writes to; None without one.
    """

    def __init__(self, path, interface, configuration=None, server=None):
        self.path = path
        self._interface = interface
        self._configuration = configuration
        self._server = server

    def rows(self):
        """The summaries of whole jobs, read without anything of Colmet's."""
        return self._rows("SELECT * FROM jobs")

    def summaries(self):
        """The same by number, of which each has one."""
        rows = self.rows()
        found = {row["job"]: row for row in rows}
        assert len(found) == len(rows), f"two summaries: {[(row['job'], row['start']) for row in rows]}"
        return found

    def hosts(self, job):
        """The summaries of a job on single hosts, in order."""
        return self._rows("SELECT * FROM hosts WHERE job = ? ORDER BY host", job)

    def _rows(self, question, *values):
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(question, values)]

    def listed(self):
        """The list of jobs from everywhere, by where it is from."""
        names = ", ".join(f'"{name}"' for name in LISTED)
        found = {
            "SQLite": [dict(row) for row in self._rows(f"SELECT {names} FROM listed")],
            "colmet jobs": self._printed("--archive", str(self.path)),
            "interface": self._interface.ask(f"/api/v1/archive/jobs?columns={','.join(LISTED)}&limit=100")["items"],
        }
        if self._server is not None:
            self._server.ask("POST", f"/{INDEX}/_refresh")
            answer = self._server.ask("POST", f"/{INDEX}/_search", {"size": 100, "_source": LISTED})
            documents = [one["_source"] for one in answer["hits"]["hits"]]
            found["database"] = [{name: document.get(name) for name in LISTED} for document in documents]
            found["colmet jobs of the database"] = self._printed("--config", str(self._configuration))
        return {where: _ordered(rows) for where, rows in found.items()}

    def _printed(self, *options):
        """What `colmet jobs` prints."""
        columns = ("--all-users", "--columns", ",".join(LISTED), "--json")
        out, said = run("colmet.commands.colmet", "jobs", *columns, *options)
        assert said == ""
        return json.loads(out)["jobs"]


def _ordered(rows):
    return sorted(rows, key=lambda row: [row[name] for name in KEY])


def is_settled(archive, jobs):
    """Whether the archive has an end of all these jobs, from their nodes and from the batch system."""
    found = archive.summaries()
    return all(job in found and not found[job]["is_running"] and found[job]["ended"] is not None for job in jobs)


def assert_as_measured(kind, seen, summary):
    """CPU time and memory peak are those of the job's cgroups, within 2 %.

    Of a job that comes and goes between two looks, Colmet may have no memory, or one before the peak, and the watcher
    not the last of it.
    """
    for value, of_kernel, slack, unseen, grows in (
        (summary["cpu_s"], seen.cpu_s, CPU_SLACK_S * max(1, len(seen.cpu)), seen.unseen_s, True),
        (summary["memory_peak"], seen.memory_peak, MEMORY_SLACK, 0, False),
    ):
        if kind.is_brief:
            assert value is None or not grows or value >= (of_kernel or 0) - slack, (kind, summary)
        elif of_kernel is not None:
            slack = max(0.02 * of_kernel, slack)
            assert of_kernel - slack <= value <= of_kernel + slack + unseen, (kind, of_kernel, unseen, summary)


def settle(archive, jobs, site):
    """Wait until the archive has all there is of these jobs."""
    logs = [site.colmet.collector.log.read_text(), site.bed.logs()]
    assert eventually(lambda: is_settled(archive, jobs), 60), (archive.summaries(), *logs)
