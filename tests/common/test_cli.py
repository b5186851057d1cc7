"""Both command lines: what of Colmet 0.6 is accepted, and how bad input is refused."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from colmet.collector import main as collector_main
from colmet.collector.backends import NAMES as OUTPUTS
from colmet.collector.backends.hdf5.library import tables  # loaded as the collector loads it
from colmet.commands import completion
from colmet.common.config import cli
from colmet.common.daemon import startup
from colmet.common.daemon.wakeup import Signals
from colmet.node import main as node_main
from colmet.node.backends import NAMES as INPUTS
from colmet.node.delivery import link as node_link


def node(*arguments):
    return node_main.build_parser(startup.load(INPUTS)).parse_args(arguments)


def collector(*arguments):
    return collector_main.build_parser(startup.load(OUTPUTS)).parse_args(arguments)


def test_the_nodes_defaults_are_those_of_06():
    options = node()
    assert (options.sample_period, options.zeromq_hwm, options.zeromq_linger) == (5.0, 1000, 0)
    assert options.zeromq_uri is None and node_link.DEFAULT_URI == "tcp://127.0.0.1:5556"
    assert options.wire == "auto"
    assert node_main.OAR2_ROOTS[0] == "/dev/oar_cgroups_links/cpuset/oar/"
    assert node_main.DEFAULT_PATTERN == r"_(\d+)$"
    assert not options.disable_procstats and not options.enable_jobproc


def abbreviations(names):
    """Each beginning that is one of a single option, with that option."""
    for name in names:
        for length in range(3, len(name)):
            if name[:length] not in names and sum(other.startswith(name[:length]) for other in names) == 1:
                yield name[:length], name


VALUES = {"--sample-period": "7", "--hdf5-complevel": "7", "--hdf5-complib": "lzo", "--pid": "7", "--tid": "7"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parse", "names"),
    [(node, node_main.OPTIONS_06), (collector, collector_main.OPTIONS_06)],
    ids=["node", "collector"],
)
def test_an_abbreviation_that_06_took_means_what_it_meant(parse, names):
    tried = 0
    for short, name in abbreviations(names):
        if name in ("--help", "--version"):
            with pytest.raises(SystemExit) as ended:
                parse(short)
            assert ended.value.code == 0
            continue
        plain = name in ("--omnipath", "--no-check-certificates", "--verbose") or "able-" in name
        value = [] if plain else [VALUES.get(name, "7")]
        assert parse(short, *value) == parse(name, *value) != parse(), short
        tried += 1
    assert tried > 100


def test_the_collectors_defaults_are_those_of_06():
    options = collector()
    assert (options.sample_period, options.zeromq_hwm, options.zeromq_linger) == (5.0, 1000, 0)
    assert options.zeromq_bind_uri == "tcp://0.0.0.0:5556"
    assert options.buffer_size == 100
    assert not options.enable_stdout_backend and options.stdout_format == "text"
    assert (options.hdf5_filepath, options.hdf5_complevel, options.hdf5_complib) == (None, 0, "zlib")


def test_options_that_repeat_keep_all_their_values():
    options = node(
        *("--cpuset_rootpath", "/a", "--cpuset_rootpath", "/b", "--regex_job_id", "x(1)", "--regex_job_id", "y(2)"),
        *("-c", "/c", "--cgroup", "/d", "-p", "1", "--pid", "2", "-t", "3", "--tid", "4"),
    )
    assert options.cpuset_rootpath == ["/a", "/b"] and options.regex_job_id == ["x(1)", "y(2)"]
    assert (options.cgroup, options.pid, options.tid) == (["/c", "/d"], [1, 2], [3, 4])


@pytest.mark.parametrize(
    ("parse", "arguments"),
    [
        (node, ["-s", "0"]),
        (node, ["-s", "nan"]),
        (node, ["-s", "-1"]),
        (node, ["-s", "fast"]),
        (node, ["--sample-period", "inf"]),
        (node, ["--zeromq-hwm", "-1"]),
        (node, ["--zeromq-hwm", "many"]),
        (node, ["--zeromq-linger", "-2"]),
        (node, ["-p", "me"]),
        (node, ["-t", "0"]),
        (node, ["--wire", "v2"]),
        (node, ["--cpuset"]),
        (node, ["stray"]),
        (collector, ["--buffer-size", "-1"]),
        (collector, ["--hdf5-complevel", "10"]),
        (collector, ["--hdf5-complib", "zip"]),
        (collector, ["--stdout-format", "xml"]),
        (collector, ["--hdf5-filepath"]),
    ],
)
def test_an_option_value_that_means_nothing_is_refused_in_one_line(parse, arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse(*arguments)
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert "error: " in message and "--help" in message and message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--enable-stdout-backend", "--zeromq-bind-uri", "tcp://192.0.2.1:5556"], "Cannot assign requested address"),
        (["--hdf5-filepath", "/proc/1/folder/x", "--zeromq-bind-uri", "tcp://127.0.0.1:*"], "/proc/1/folder"),
    ],
)
def test_the_collector_does_not_start_on_what_cannot_be_done(arguments, said, caplog):
    assert collector_main.main(arguments) == 2
    assert said in caplog.text


def test_a_start_that_fails_late_leaves_no_file_open(tmp_path, caplog):
    """PyTables names files that it finds open at the end on standard error."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        outputs = ["--hdf5-filepath", str(tmp_path / "x.hdf5"), "--control-socket", ""]
        started = ["--zeromq-bind-uri", "tcp://127.0.0.1:*", "--metrics-listen", taken]
        assert collector_main.main([*outputs, *started]) == 2
    assert "Address already in use" in caplog.text
    assert str(tmp_path / "x.hdf5") not in tables.file._open_files.filenames


@pytest.mark.parametrize(("given", "warnings"), [("0", 1), ("1000", 0)])
def test_no_queue_is_without_a_bound(given, warnings, caplog, tmp_path):
    """Colmet 0.6 had --zeromq-hwm 0 for no limit."""
    assert collector_main.main(["--enable-stdout-backend", "--zeromq-hwm", given, "--check-config"]) == 0
    assert node("--zeromq-hwm", given).zeromq_hwm == 1000
    assert caplog.text.count("--zeromq-hwm 0: 1000 is used") == warnings


def test_a_buffer_for_no_row_is_one_for_one_row():
    assert collector("--buffer-size", "0").buffer_size == 1


def test_a_port_in_use_leaves_the_other_collectors_file_alone(tmp_path, caplog):
    from colmet.common.transport import Pull

    other = Pull("tcp://127.0.0.1:*", 10)
    path = tmp_path / "x.hdf5"
    assert collector_main.main(["--hdf5-filepath", str(path), "--zeromq-bind-uri", other.uri]) == 2
    other.close()
    assert "Address already in use" in caplog.text
    assert not path.exists()


@pytest.mark.parametrize("module", ["colmet.node.main", "colmet.collector.main"])
def test_help_and_version_are_printed(module):
    for option, said in (("--help", "--sample-period"), ("--version", "colmet-")):
        done = subprocess.run([sys.executable, "-m", module, option], capture_output=True, text=True, check=True)
        assert said in done.stdout and not done.stderr


EVERY = {name: program.build for name, program in {**completion.PROGRAMS, **completion.COMMANDS}.items()}


@pytest.mark.parametrize("name", EVERY)
def test_the_help_fits_a_screen_and_leaves_the_rest_to_help_all(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parser = EVERY[name]()
    short, long = parser.format_help(), parser.format_help(everything=True)
    assert short.count("\n") <= 62, f"{name}: mark options that few need as Rare"
    assert short.startswith(f"usage: {name} ") and "--help" in short
    visible = [action for action in parser.actions if action.help is not argparse.SUPPRESS]
    assert all(action.help for action in visible), "each option has a help"
    for action in visible:
        for option in action.option_strings:
            assert re.search(rf"^  .*{re.escape(option)}\b", long, re.M)
    hidden = [action for action in visible if isinstance(action.help, cli.Rare)]
    assert ("--help-all" in short) == (len(hidden) > 1 or any(cli.DETAIL in action.help for action in visible))


@pytest.mark.parametrize("name", ["colmet-node", "colmet-collector"])
def test_the_help_names_each_option_of_colmet_06(name):
    parser = EVERY[name]()
    assert not [option for option in parser.older if option not in parser.format_help()]


def test_help_shows_what_is_usual_and_help_all_the_rest(capsys):
    parser = cli.Parser(prog="cook", description="Cook.")
    parser.add_argument("--salt", metavar="G", default="1", help="add salt; in grams; not sugar (default: %(default)s)")
    parser.add_argument("--poison", action="store_true", help=cli.Rare("add poison"))
    parser.add_argument("dish", metavar="DISH", nargs="+", help="what to cook")
    for options, said in ((["-h"], False), (["--help"], False), (["--help-all"], True)):
        with pytest.raises(SystemExit) as end:
            parser.parse_args(options)
        out = capsys.readouterr().out
        assert end.value.code == 0 and out.startswith("usage: cook [OPTION ...] DISH [DISH ...]\n")
        assert ("--poison" in out, "in grams; not sugar (default: 1)" in out) == (said, said)
        assert ("add salt (default: 1)" in out, "cook --help-all: 1 more option" in out) == (not said, not said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--enable-rpl"], "there is no option --enable-rpl; did you mean --enable-rapl?"),
        (["--ZEROMQ_URI=x"], "did you mean --zeromq-uri?"),
        (["--wire", "v2"], "argument --wire: invalid choice: 'v2'"),
        (["-Z"], "there is no option -Z"),
        (["stray"], "unexpected argument 'stray'"),
        (["--nonsense"], "there is no option --nonsense (try colmet-node --help)"),
    ],
)
def test_a_misspelt_option_has_the_right_one_beside_it(arguments, said, capsys):
    with pytest.raises(SystemExit):
        node(*arguments)
    assert said in capsys.readouterr().err


def test_options_of_06_may_have_dashes_and_small_letters():
    options = node("--cpuset-rootpath", "/a", "--regex-job-id", "x(1)", "--enable-rapl")
    assert (options.cpuset_rootpath, options.regex_job_id, options.enable_RAPL) == (["/a"], ["x(1)"], True)


def test_signals_are_data_and_wake_a_wait():
    import select

    before = signal.getsignal(signal.SIGHUP)
    with Signals((signal.SIGTERM, signal.SIGHUP)) as signals:
        assert not select.select([signals.fd], [], [], 0)[0]
        os.kill(os.getpid(), signal.SIGHUP)
        assert select.select([signals.fd], [], [], 1)[0]
        signals.drain()
        assert not select.select([signals.fd], [], [], 0)[0]
        assert signals.take(signal.SIGHUP) and not signals.take(signal.SIGHUP)
        assert not signals.stop_wanted()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert signals.stop_wanted()
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_period_has_a_number_and_a_unit():
    assert [cli.period(text) for text in ("30m", "12h", "90d", "4w", "2y")] == [1800, 43200, 7776000, 2419200, 63072000]
    for text in ("", "0d", "90", "d", "1.5d", "-1d", "1d ", "9999999d", "٣d"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a period such as"):
            cli.period(text)
