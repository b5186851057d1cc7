"""Output to the job archive: a summary of each job, kept for ever, in one SQLite file.

The archive's own position is the truth: summaries, unfinished folds and the position are one transaction. The state of
the output follows it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.journal.output_state import OutputState
from colmet.common import database_client
from colmet.common.config.cli import Options, Rare, period
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.host.files import check_writable, make, reason_with_remedy, size_of
from colmet.jobs.archive.archiver import COUNTS, Archiver
from colmet.jobs.archive.indices import Indices
from colmet.jobs.archive.joining import PERIOD_S, SYSTEMS, Joiner
from colmet.jobs.archive.local import is_shared, path_of
from colmet.jobs.archive.removal import ArchiveExpiry
from colmet.jobs.archive.sharing import ShareThread, outbox_of
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, Position, is_of, lock

log = logging.getLogger(__name__)

# Few large transactions cost less than many small ones: each writes the state of all jobs that had rows.
SHARE = 0.003  # of the time spent
MAX_DELAY_S = 60.0
BURST_BYTES = 128 << 20
LAST_SHARE_S = 8.0  # at the end, for what the shared archive does not have yet
AUTO = "auto"
# Kind and help of the counters.
DESCRIBED: Mapping[str, tuple[str, str]] = {
    "open": ("gauge", "Unfinished summaries of jobs on hosts."),
    "held": ("gauge", "Batches that wait for those before them."),
    "jobs": ("counter", "Summaries of whole jobs written; of a running job many times."),
    "hosts": ("counter", "Summaries of jobs on hosts written."),
    "late_rows": ("counter", "Rows that came too late for all but peaks and numbers of samples."),
    "rows_left_out": ("counter", "Rows dropped: beyond the limit of summaries or hosts, or twice in a table."),
    "folds_lost": ("counter", "States that could not be read after a restart."),
    "summaries_kept": ("counter", "Summaries kept after a restart, as they have more samples than their state."),
    "jobs_removed": ("counter", "Jobs removed by --archive-keep."),
    "batch_joined": ("counter", "Summaries that got a record of a batch system."),
    "batch_alone": ("counter", "Records of batch systems of jobs without rows."),
    "batch_failures": ("counter", "Questions to batch systems that failed."),
    "batch_skipped": ("counter", "Records of batch systems in an unknown form, or contradictory."),
    "unshared": ("gauge", "Summaries that wait for the shared archive."),
    "shared": ("counter", "Summaries sent to the shared archive."),
    "conflicts": ("counter", "Jobs that another collector changed in the shared archive at the same time."),
    "postponed": ("counter", "Jobs left for later, because other collectors changed them again and again."),
    "share_failures": ("counter", "Failures of the shared archive."),
    "share_refused": ("counter", "Documents that the shared archive refused for good."),
    "files_damaged": ("counter", "Damaged files set aside."),
    "size_bytes": ("gauge", "Size of the file."),
}
SETS_ASIDE = ("not a database", "malformed")  # words of SQLite's errors


class ArchiveOutput(OutputBackend):
    """Writes summaries of jobs.

    Args:
        keep_s: summaries of jobs that ended longer ago are removed; 0 keeps all.
    """

    name = "archive"
    described: ClassVar = DESCRIBED
    share = SHARE
    max_delay_s = MAX_DELAY_S
    burst_bytes = BURST_BYTES

    def __init__(
        self, path: str, joiner: Joiner | None = None, indices: Indices | None = None, keep_s: int = 0
    ) -> None:
        self.path = path
        self._joiner = joiner
        self._indices = indices
        self._sharing: ShareThread | None = None
        self._expiry = ArchiveExpiry(keep_s)
        self._state = OutputState("", "", 0, 0)
        self._store: ArchiveStore | None = None
        self._archiver: Archiver | None = None
        self._lock = -1
        self._damaged = 0
        self._counts: Counter[str] = Counter()  # of the archivers and threads, one after the other

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare --archive and the options that begin so, and --no-shared-archive."""
        parser.add_argument(
            "--archive",
            metavar="PATH",
            help=Rare(
                "keep a summary of each job in this SQLite file, for ever; '': none (default: PATH.archive.sqlite "
                "beside the HDF5 files; with a database alone, archive.sqlite in --journal-dir)"
            ),
        )
        parser.add_argument(
            "--archive-batch",
            metavar="NAME[,NAME]",
            default=AUTO,
            help=Rare(
                f"add what these batch systems know of each job: {', '.join(SYSTEMS)}; oar=URL of its REST interface; "
                "gridengine=PATH of its accounts; none; auto: those whose commands are here (default: auto)"
            ),
        )
        parser.add_argument(
            "--archive-keep",
            metavar="PERIOD",
            type=period,
            default=0,
            help=Rare("remove summaries of jobs that ended longer ago: 90d, 5y (default: keep them for ever)"),
        )
        parser.add_argument(
            "--no-shared-archive",
            action="store_true",
            help=Rare("keep the summaries of jobs in the local file only, not in the database of --elastic-host, too"),
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> ArchiveOutput | None:
        """Return the output; None for an empty --archive, and without it where there is no place for a file."""
        path = path_of(options)
        if not path:
            return None
        named = options.archive_batch
        try:
            period_s = min(PERIOD_S, 12 * options.sample_period)
            joiner = Joiner.named(named, lambda: ArchiveStore(path, writable=True), period_s, named != AUTO)
        except ConfigError as err:
            raise ConfigError(f"--archive-batch: {err}") from err
        indices = None
        if is_shared(options):
            client = database_client.open_client(options, warns=False)  # the other output does
            prefix = database_client.checked_prefix(options)
            indices = Indices(client, prefix, not options.elastic_no_template)
        return cls(path, joiner, indices, options.archive_keep)

    def check(self, journal_dir: str) -> None:
        """Check that the file can be created, or written."""
        try:
            if os.path.lexists(self.path):
                with open(self.path, "r+b"):
                    pass
            check_writable(os.path.dirname(os.path.abspath(self.path)), parents=True)
        except OSError as err:
            raise _not_writable(self.path, err) from err

    def open(self, state: OutputState) -> None:
        """Check that the file can be written; `recover` opens it."""
        self._release()
        self._state = state
        try:
            make(os.path.dirname(os.path.abspath(self.path)))
        except OSError as err:
            raise _not_writable(self.path, err) from err

    def recover(self) -> None:
        """Open the archive, and continue at its own position."""
        self._release()
        store = self._opened()
        try:
            outbox_of(store, self._indices is not None)
            position = store.position
            archiver = Archiver(store, self._counts)
        except OutputUnavailable:  # of a later version
            store.close()
            raise
        except sqlite3.Error as err:
            store.close()
            self._fail(err)
        at = self._state.position
        if position is not None and position.journal == self._state.journal:
            at = position.number
        else:
            if position is not None and not self._state.is_new:
                log.warning(
                    "archive of another journal, records between them may be missing: path=%s journal=%s",
                    *(self.path, position.journal),
                )
            archiver.other_journal(at)
        if at != self._state.position:
            self._state.save(at)
        self._store, self._archiver = store, archiver
        if self._joiner is not None:
            self._joiner.start()
        self._share()

    def _share(self) -> None:
        """Start the thread that shares, unless the former one still waits for an answer to its last request."""
        if self._indices is not None and (self._sharing is None or self._sharing.has_ended()):
            self._sharing = ShareThread(self.path, self._indices, self._counts)

    def _opened(self) -> ArchiveStore:
        """Lock and open the file; a damaged one is set aside, and another one started."""
        try:
            if not is_of(self._lock, self.path):  # kept while the file is: closing it would end locks of the joiner
                descriptor, self._lock = self._lock, lock(self.path)
                if descriptor >= 0:
                    os.close(descriptor)
        except ArchiveError as err:
            raise OutputUnavailable(str(err)) from err
        try:
            return ArchiveStore(self.path, writable=True)
        except ArchiveError as err:
            self._fail(err.__cause__ or err)

    def _fail(self, err: BaseException) -> NoReturn:
        """Raise OutputUnavailable after an error of SQLite; a damaged file is set aside."""
        self._release()
        text = str(err)
        if isinstance(err, sqlite3.DatabaseError) and any(word in text for word in SETS_ASIDE):
            aside = f"{self.path}.damaged.{int(time.time())}"
            for suffix in ("", "-wal", "-shm"):
                if os.path.lexists(self.path + suffix):
                    os.replace(self.path + suffix, aside + suffix)
            self._damaged += 1
            log.error(
                "archive is damaged, it is set aside and a new one started; colmet archive rebuild makes it again from "
                "stored rows: path=%s aside=%s cause=%s",
                *(self.path, aside, text),
            )
        raise OutputUnavailable(f"{self.path}: {text}") from err

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Fold records, and write what has changed.

        Raises:
            OutputUnavailable: the disk is full, the file is locked or damaged, or records before these are due again.
        """
        if self._archiver is None:
            before = self._state.position
            self.recover()
            # Batches that waited for an earlier one of their host are in records before these.
            if self._state.position != before:
                raise OutputUnavailable(f"{self.path} is continued from its last transaction")
        archiver, store = self._archiver, self._store
        assert archiver is not None and store is not None
        try:
            archiver.take((one.number, one.received_ns, one.batches) for one in records)
            changes = archiver.changes()
            store.write(changes, Position(self._state.journal, archiver.position))
        except OutputUnavailable as err:
            self._fail(err.__cause__ or err)
        except sqlite3.Error as err:
            self._fail(err)
        except Exception:
            archiver.restart()
            raise
        archiver.saved(changes)
        try:
            self._expiry.remove(store)
        except OutputUnavailable as err:
            log.warning("old summaries not removed, retried later: %s", err)
        # records before `until` with waiting batches that were not read again yet come first
        done = archiver.until if not archiver.is_rereading else min(archiver.until, records[-1].number + 1)
        self._state.save(done, keep_from=archiver.position)  # at most `done`
        self._share()
        if self._sharing is not None and (changes.hosts or changes.jobs):
            self._sharing.wake()

    def interrupt(self) -> None:
        """Send nothing more to the database."""
        if self._indices is not None:
            self._indices.client.stop()  # the current request keeps its timeout

    def counters(self) -> dict[str, int]:
        """Return the numbers of open folds, written and removed summaries, dropped rows, and the size of the file."""
        archiver = self._archiver
        own = {name: self._counts[name] for name in COUNTS} if archiver is None else archiver.counters()
        batch = self._joiner.counters() if self._joiner is not None else {}
        shared = self._sharing.counters() if self._sharing is not None else {}
        return {
            **own,
            **shared,
            **batch,
            "jobs_removed": self._expiry.removed,
            "files_damaged": self._damaged,
            "size_bytes": sum([size_of(self.path + suffix) for suffix in ("", "-wal")]),
        }

    def details(self) -> Mapping[str, Any]:
        """Return the states of the batch systems that are asked."""
        return {"batch_systems": self._joiner.states() if self._joiner is not None else []}

    def close(self) -> None:
        """Write the summaries of all running jobs, and close the file; idempotent."""
        if self._joiner is not None:
            self._joiner.close()
        archiver, store = self._archiver, self._store
        if archiver is not None and store is not None:
            try:
                store.write(archiver.changes(whole=True), None)
            except OutputUnavailable as err:
                log.warning("summaries of running jobs not written, they follow after the next start: %s", err)
        self._release(LAST_SHARE_S)
        if self._indices is not None:
            self._indices.client.close()
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _release(self, share_s: float = 0.0) -> None:
        """Close the file; before, send to the database for at most `share_s`."""
        if self._sharing is not None:
            self._sharing.stop(share_s)
        store, self._store, self._archiver = self._store, None, None
        if store is not None:
            store.close()


def _not_writable(path: str, err: OSError) -> ConfigError:
    return ConfigError(f"--archive {path}: {reason_with_remedy(path, err.strerror)}")
