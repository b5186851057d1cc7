"""Where the job archive of a collector is, by its options."""

from __future__ import annotations

import argparse
import os

from colmet.jobs.archive.store import SUFFIX

IN_JOURNAL = "archive.sqlite"  # in the journal's directory, without HDF5 files


def path_of(options: argparse.Namespace) -> str:
    """Return the path of the archive's file: --archive, else beside the HDF5 files or in the journal; "" for none.

    Without HDF5 files there is one for a database only, whose journal is on disk.
    """
    named = getattr(options, "archive", None)
    if named is not None:
        return str(named)
    if options.hdf5_filepath:
        return f"{options.hdf5_filepath}{SUFFIX}"
    journal = getattr(options, "journal_dir", None)
    return os.path.join(journal, IN_JOURNAL) if has_database(options) and journal else ""


def has_database(options: argparse.Namespace) -> bool:
    """Return whether the collector writes to a database."""
    return bool(getattr(options, "elastic_host", None))


def is_shared(options: argparse.Namespace) -> bool:
    """Return whether the collector's archive is in its database, too."""
    return has_database(options) and bool(path_of(options)) and not getattr(options, "no_shared_archive", False)
