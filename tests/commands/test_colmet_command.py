"""The colmet command: its subcommands, and what is said of a wrong command line."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys

import pytest

from colmet.commands import colmet
from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.daemon import control
from colmet.jobs.archive.queries import GROUPS, LISTED


def test_the_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        colmet.main(["--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    for name, command in colmet.COMMANDS.items():
        assert f"  {name}" in out and command.help in out


def test_without_a_command_the_list_of_commands_is_printed(capsys):
    for argv in ([], ["help"]):
        with contextlib.suppress(SystemExit):
            assert colmet.main(argv) == 0
        assert "commands:\n  status" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        colmet.main(["help", "report"])
    assert capsys.readouterr().out.startswith("usage: colmet report ")


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("team", GROUPS, ""),
        ("memori", LISTED, "; did you mean memory_peak or memory_used_ratio or memory_byte_s?"),
        ("memory-peek", LISTED, "; did you mean memory_peak?"),
    ],
)
def test_a_suggestion_is_like_the_word(word, known, meant):
    assert did_you_mean(word, known) == meant


@pytest.mark.parametrize("name", colmet.COMMANDS)
def test_every_command_has_a_module_with_a_help(name, capsys):
    module = importlib.import_module(colmet.COMMANDS[name].module)
    with pytest.raises(SystemExit) as end:
        colmet.main([name, "--help"])
    assert end.value.code == 0
    assert module.__doc__.strip().split()[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["rep"], "there is no command 'rep'; did you mean report?"),
        (["help", "rep"], "there is no command 'rep'; did you mean report?"),
        (["report", "--array"], "argument --array: expected one argument"),
        (["complete"], "did you mean completeness?"),
        (["report", "4242", "--jsn"], "there is no option --jsn; did you mean --json?"),
        (["report", "--Since=2h"], "there is no option --Since; did you mean --since?"),
        (["top", "--usr", "bob"], "did you mean --user?"),
        (["keygen"], "required: role"),
        (["extract", "-j", "1", "--format", "parket"], "argument --format: invalid choice: 'parket'"),
        *[(argv, "--help") for argv in (["nonsense"], ["status", "cook"], ["status", "node", "--nonsense"])],
    ],
)
def test_a_misspelt_word_has_the_right_one_beside_it(argv, hint, capsys):
    with pytest.raises(SystemExit) as end:
        colmet.main(argv)
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.count("\n") == 1 and hint in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["extract", "-j", "4", "--hdf5", "x", "--list", "-o", "x"], "--list excludes --metrics, --output"),
        (["status", "--check", "--json"], "--check excludes --json and --all"),
        (["keygen", "node", "a", "--if-missing"], "--if-missing is for the collector's pair"),
    ],
)
def test_options_of_no_effect_are_refused(argv, said, capsys):
    assert colmet.main(argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["report", "plot", "extract", "completeness", "mem", "top"])
def test_a_job_is_named_alike_in_all_commands(name):
    module = importlib.import_module(colmet.COMMANDS[name].module)
    parser = cli.Parser(prog=name)
    module.add_options(parser)
    actions = {option: action for action in parser.actions for option in action.option_strings}
    assert actions["-j"] is actions["--job"] and actions["-h"] is actions["--help"]
    assert {"-u", "--user"} <= set(actions) or name not in ("mem", "top")
    assert {"--since", "--until"} <= set(actions) or name in ("mem", "top")
    assert "--host" in actions or name in ("report", "top")


def test_an_absent_daemon_is_one_line_and_status_1(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(control, "DIRECTORY", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert colmet.main(["status", "node"]) == 1
    places = f"{tmp_path}/node.sock or {tmp_path}/node/node.sock"
    why = "`colmet doctor --node` says why"
    assert capsys.readouterr().err == f"colmet status: no colmet-node listens on {places}; {why}\n"


def test_a_command_whose_library_is_not_installed_is_one_line(capsys):
    commands = {"lacking": colmet.Subcommand("no_such_library", "what a node cannot do")}
    assert colmet.main(["lacking"], commands) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("colmet lacking: it requires the Python module no_such_library")


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("requests", ["extract", "--help"]),
        ("tables", ["extract", "--job", "7", "--hdf5", "x"]),
        ("tables", ["extract", "x", "7", "0", "1", "m"]),
    ],
)
def test_so_is_one_that_needs_a_library_only_when_it_runs(name, argv):
    code = (
        f"import sys; sys.modules[{name!r}] = None; from colmet.commands import colmet; sys.exit(colmet.main({argv}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        f"colmet {argv[0]}: it requires the Python module {name}, which is not installed here"
    )


def ended(body, tmp_path, out, **variables):
    """Exit status and standard error of a command with this body, whose output goes there."""
    (tmp_path / "probe.py").write_text(f"import os, signal\n\ndef add_options(parser): pass\n\n{body}\n")
    program = (
        "import sys; from colmet.commands import colmet; "
        "sys.exit(colmet.main(sys.argv[1:], {'probe': colmet.Subcommand('probe', 'prints something')}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONUNBUFFERED": ""}
    environment.update(variables)
    done = subprocess.run(
        [sys.executable, "-c", program, "probe"], stdout=out, stderr=subprocess.PIPE, text=True, env=environment
    )
    return done.returncode, done.stderr


def test_ctrl_c_ends_a_command_in_silence(tmp_path):
    body = "def run(options): os.kill(os.getpid(), signal.SIGINT); signal.pause()"
    assert ended(body, tmp_path, subprocess.DEVNULL) == (130, "")


@pytest.mark.parametrize("words", [1, 10**6], ids=["at-its-end", "meanwhile"])
def test_a_reader_that_goes_away_ends_a_command_in_silence(tmp_path, words):
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        assert ended(f"def run(options): print('word ' * {words}); return 0", tmp_path, pipe) == (141, "")


def test_output_that_finds_no_room_is_one_line_and_status_1(tmp_path):
    with open("/dev/full", "wb") as full:
        status, err = ended("def run(options): print('word'); return 0", tmp_path, full)
    assert (status, err) == (1, "colmet: standard output: No space left on device\n")


def test_what_a_terminal_has_no_character_for_is_a_question_mark(tmp_path):
    body = "def run(options): print('zo\\u00e9 \\udcff'); return 0"
    with open(tmp_path / "out", "wb") as out:
        assert ended(body, tmp_path, out, PYTHONIOENCODING="ascii") == (0, "")
    assert (tmp_path / "out").read_bytes() == b"zo? ?\n"
