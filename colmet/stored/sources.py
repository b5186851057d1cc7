"""Choice of a command's store: from its options, else from the configuration of this machine's collector."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from colmet.common.errors import ConfigError
from colmet.common.runtime import cli, database_client
from colmet.stored.by_time import RowsByTime
from colmet.stored.series import History

CONFIG = "/etc/colmet/collector.toml"


def add_options(parser: cli.Options) -> None:
    """Declare the options of the store."""
    group = parser.add_argument_group("store (default: that of the collector's configuration)")
    group.add_argument(
        "--hdf5",
        metavar="PATH",
        action="append",
        default=[],
        help="HDF5 file, or the collector's --hdf5-filepath; that is all PATH.<10 digits>.hdf5; repeatable",
    )
    database_client.add_options(group, "read from")
    add_config(group)


def add_config(parser: cli.Options) -> None:
    """Declare --config."""
    parser.add_argument(
        "--config", metavar="FILE", default=CONFIG, help="configuration of the collector (default: %(default)s)"
    )


def configured_files(path: str) -> list[str]:
    """Return the HDF5 files of this machine's collector, the oldest first; raise ConfigError without any."""
    from colmet.stored.hdf5 import files_of

    prefix = configured(path, "FILE").hdf5_filepath
    if not prefix:
        raise ConfigError(f"{path}: no hdf5-filepath; give FILE")
    files = [file.path for file in files_of(prefix)]
    if not files:
        raise ConfigError(f"{path}: no file of hdf5-filepath {prefix} exists; give FILE")
    return files


def open_history(options: argparse.Namespace) -> History:
    """Return the store given by the options; raise ConfigError for none, or an unreadable one."""
    paths, database = _chosen(options)
    return _files(paths) if paths else _database(database)


def open_by_time(options: argparse.Namespace) -> tuple[RowsByTime, str]:
    """Return the same store, to be read by time, and the name of the output that writes it."""
    paths, database = _chosen(options)
    if paths:
        from colmet.stored.hdf5_by_time import Hdf5RowsByTime

        return Hdf5RowsByTime(paths), "hdf5"
    from colmet.stored.elastic_by_time import ElasticRowsByTime

    return ElasticRowsByTime.from_options(database), "elasticsearch"


def _chosen(options: argparse.Namespace) -> tuple[Sequence[str], argparse.Namespace]:
    """Return the paths of HDF5 files, empty for a database, and the options of the database."""
    if options.hdf5 and options.elastic_host:
        raise ConfigError("--hdf5 and --elastic-host: give one of them")
    if options.hdf5 or options.elastic_host:
        return options.hdf5, options
    collector = configured(options.config)
    if collector.hdf5_filepath or collector.elastic_host:
        return [collector.hdf5_filepath] if collector.hdf5_filepath else [], collector
    raise ConfigError(
        f"{options.config} names neither hdf5-filepath nor elastic-host: give --hdf5 PATH or --elastic-host URL"
    )


def _files(paths: Sequence[str]) -> History:
    from colmet.stored.hdf5 import Hdf5History  # each requires a library that the other does not need

    return Hdf5History(paths)


def _database(options: argparse.Namespace) -> History:
    from colmet.stored.elastic import ElasticHistory

    return ElasticHistory.from_options(options)


def configured(path: str, other: str = "--hdf5 PATH, --elastic-host URL") -> argparse.Namespace:
    """Return the options of this machine's collector; this requires all modules of the collector.

    Raises:
        ConfigError: there is no such file, or it cannot be used; the text suggests `other`.
    """
    from colmet.collector import main as collector
    from colmet.common.runtime.configuration import Configuration

    try:
        return Configuration(collector.full_parser, ["--config", path]).read()
    except ConfigError as err:
        if path == CONFIG and not os.path.exists(path):
            raise ConfigError(
                "no collector is known here: `colmet login URL`, with the URL of your site's; its administrators know "
                f"it. On the collector's machine, give {other}, or the collector's file as --config"
            ) from err
        raise ConfigError(f"{err}; give {other}, or the collector's file as --config") from err
