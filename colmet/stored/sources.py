"""Choice of a command's store: from its options, else from the configuration of this machine's collector."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from colmet.common import database_client
from colmet.common.config import cli, configuration
from colmet.common.errors import ConfigError
from colmet.stored.series import RowStore

CONFIG = "/etc/colmet/collector.toml"


def add_options(parser: cli.Options) -> None:
    """Declare the options of the store."""
    parser.add_argument(
        "--hdf5",
        metavar="PATH",
        action="append",
        default=[],
        help="read this HDF5 file, or the files of the collector's --hdf5-filepath; that is all PATH.<10 digits>.hdf5; "
        "repeatable (default: the store of the collector's configuration)",
    )
    add_config(parser)


def add_config(parser: cli.Options) -> None:
    """Declare --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=CONFIG,
        help="configuration of the collector (default: %(default)s); a file with elastic-host and http-credentials "
        "names a database",
    )


def configured_files(path: str) -> list[str]:
    """Return the HDF5 files of this machine's collector, the oldest first; raise ConfigError without any."""
    from colmet.stored.reading_process import files_of

    prefix = configured(path, "FILE").hdf5_filepath
    if not prefix:
        raise ConfigError(f"{path}: no hdf5-filepath; give FILE")
    files = [file.path for file in files_of(prefix)]
    if not files:
        raise ConfigError(f"{path}: no file of hdf5-filepath {prefix} exists; give FILE")
    return files


class NoStore(ConfigError):
    """No option and no configuration names a store."""


def open_history(options: argparse.Namespace) -> RowStore:
    """Return the store given by the options; raise NoStore for none, ConfigError for an unreadable one."""
    paths: Sequence[str] = options.hdf5
    if not paths:
        collector = configured(options.config)
        if collector.elastic_host and not collector.hdf5_filepath:
            from colmet.stored.elastic import ElasticHistory  # each requires a library that the other does not need

            return ElasticHistory.from_options(collector)
        if not collector.hdf5_filepath:
            raise NoStore(f"{options.config} names neither hdf5-filepath nor elastic-host: give --hdf5 PATH")
        paths = [collector.hdf5_filepath]
    from colmet.stored.hdf5 import Hdf5History

    return Hdf5History(paths)


def declare_store(parser: cli.Parser) -> None:
    """Declare the options of a collector that say where its rows and its archive are."""
    for name in ("--hdf5-filepath", "--archive", "--journal-dir"):
        parser.add_argument(name)
    parser.add_argument("--no-shared-archive", action="store_true")
    database_client.add_options(parser, "read from")


def configured(
    path: str, other: str = "--hdf5 PATH", declare: Callable[[cli.Parser], None] = declare_store
) -> argparse.Namespace:
    """Return the options of this machine's collector that `declare` declares; others in its file are not checked.

    Raises:
        ConfigError: there is no such file, or it cannot be used; the text suggests `other`.
    """
    parser = cli.Parser(prog="colmet")
    parser.ignores_unknown = True
    declare(parser)
    options: argparse.Namespace = parser.parse_args([])
    try:
        vars(options).update(configuration.parse(configuration.file_text(path), path, parser))
    except ConfigError as err:
        if path == CONFIG and not os.path.exists(path):
            raise NoStore(
                "no collector is known here: `colmet login URL`, with the URL of your site's; its administrators know "
                f"it. On the collector's machine, give {other}, or the collector's file as --config"
            ) from err
        raise ConfigError(f"{err}; give {other}, or the collector's file as --config") from err
    return options
