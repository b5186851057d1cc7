"""The configuration file: what may stand in it, what is refused and where, and what the command line says beside it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colmet.collector import main as collector_main
from colmet.collector.backends import NAMES as OUTPUTS
from colmet.common.config import configuration
from colmet.common.config.configuration import MAX_BYTES, Configuration, parse
from colmet.common.daemon import startup
from colmet.common.errors import ConfigError
from colmet.node import main as node_main
from colmet.node.backends import NAMES as INPUTS

BUILDS = {
    "node": lambda: node_main.build_parser(startup.load(INPUTS)),
    "collector": lambda: collector_main.build_parser(startup.load(OUTPUTS)),
}


def values(text, daemon="node"):
    return parse(text, "node.toml", BUILDS[daemon]())


def read(tmp_path, text, *arguments, daemon="node"):
    path = tmp_path / "colmet.toml"
    path.write_text(text)
    return Configuration(BUILDS[daemon], ["--config", str(path), *arguments]).read()


def is_one(action, text):
    """Whether the option accepts this text, and it is not its default."""
    try:
        return (action.type or str)(text) != action.default
    except (ValueError, argparse.ArgumentTypeError):
        return False


def option_text(action):
    """A value of an option as TOML, and as arguments."""
    name = next(name for name in action.option_strings if name.startswith("--"))
    if action.dest == "verbose":
        return "2", [name, name]
    if action.nargs == 0:
        return "true", [name]
    texts = [*map(str, action.choices or ()), "12", "500M", "1d", "blosc", "10.0.0.1", "x", "/x"]
    plain = next(filter(lambda text: is_one(action, text), texts))
    quoted = f'"{plain}"'
    if action.nargs == "+":
        return f"[{quoted}, {quoted}]", [name, plain, plain]
    return quoted, [name, plain]


@pytest.mark.parametrize("daemon", BUILDS)
def test_every_option_may_stand_in_the_file_and_means_what_it_does_on_the_command_line(daemon, tmp_path):
    actions = [
        action
        for action in BUILDS[daemon]().actions
        if action.dest not in ("help", "help_all", "version", "config", "check_config")
    ]
    assert len(actions) > 20
    for action in actions:
        name = next(name for name in action.option_strings if name.startswith("--"))
        text, arguments = option_text(action)
        of_file = vars(read(tmp_path, f"{name[2:]} = {text}\n", daemon=daemon))
        of_line = vars(BUILDS[daemon]().parse_args(arguments))
        assert of_file[action.dest] == of_line[action.dest] != BUILDS[daemon]().get_default(action.dest), name
        assert {**of_file, "config": None} == of_line


def test_without_a_file_the_options_are_those_of_the_command_line():
    arguments = ["-s", "2", "--disable-cgroup", "-c", "/a", "-vv"]
    assert Configuration(BUILDS["node"], arguments).read() == BUILDS["node"]().parse_args(arguments)


def test_what_the_command_line_says_counts_instead_of_the_file(tmp_path):
    text = """
        sample-period = 2.5      # a comment
        cpuset_rootpath = ["/a", "/b"]
        zeromq-hwm = 7
        verbose = 1
        disable-cgroup = true
        enable-jobproc = false
        perfhw-list = ["page_faults", "task_clock"]
    """
    options = read(tmp_path, text)
    assert (options.sample_period, options.zeromq_hwm, options.verbose) == (2.5, 7, 1)
    assert options.cpuset_rootpath == ["/a", "/b"] and options.perfhw_list == ["page_faults", "task_clock"]
    assert options.disable_cgroup and not options.enable_jobproc
    options = read(tmp_path, text, "-s", "5", "--cpuset_rootpath", "/c", "-vv", "--perfhw-list", "dummy")
    assert (options.sample_period, options.zeromq_hwm, options.verbose) == (5.0, 7, 2)  # 5 is the default, and said
    assert options.cpuset_rootpath == ["/c"] and options.perfhw_list == ["dummy"]


def test_one_value_of_a_list_may_stand_alone():
    found = values("cpuset_rootpath = '/a'\npid = 7\nperfhw-list = 'dummy'")
    assert found == {"cpuset_rootpath": ["/a"], "pid": [7], "perfhw_list": ["dummy"]}


@pytest.mark.parametrize(
    ("text", "value"), [("true", "tcp://127.0.0.1:5557"), ("false", ()), ("'tcp://[::1]:5557'", "tcp://[::1]:5557")]
)
def test_an_option_whose_value_may_be_left_out_is_a_truth_value_or_a_text(text, value):
    assert values(f"enable-rust-configuration = {text}").get("enable_rust_configuration", ()) == value


def test_the_example_in_the_documentation_can_be_used():
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    found = values(page.split("```toml\n")[1].split("```")[0])
    assert found["sample_period"] == 2.5 and found["perfhw_list"] == ["instructions", "cache_misses:10:-1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sample-period = 0", r"node.toml: sample-period: '0' is not a number of seconds from 0.01 to 86400"),
        ("sample-period = 'often'", r"node.toml: sample-period: 'often' is not a number of seconds"),
        ("sample-period = true", r"sample-period: give a text in quotes, or a number"),
        ("sample-period = [5]", r"sample-period: give a text in quotes, or a number"),
        ("sample-period = 2026-01-01", r"sample-period: give a text in quotes, or a number"),
        ("zeromq-hwm = 2.5", r"zeromq-hwm: '2.5' is not a whole number from 0"),
        (r'zeromq-uri = "a\u0000b"', r"zeromq-uri: give a text in quotes"),
        ("'wire' = 'v2'", r"node.toml: wire: invalid choice: 'v2'"),
        ("disable-cgroup = 'false'", r"disable-cgroup: give true or false"),
        ("verbose = 10", r"verbose: give a number from 0 to 9"),
        ("cpuset_rootpath = ['/a', ['/b']]", r"cpuset_rootpath: give a text in quotes, or a number"),
        ("cpuset_rootpath = []", r"cpuset_rootpath: an empty array; leave the option out"),
        ("pid = [1, 0]", r"pid: '0' is not a whole number from 1"),
        ("sample_period = 5", r"node.toml: sample_period: no such option; did you mean sample-period\?"),
        ("s = 5", r"node.toml: s: no such option$"),
        ('"a\\nb" = 5', r"node.toml: a\\nb: no such option$"),
        ("config = 'other.toml'", r"config: only for the command line"),
        ("check-config = true", r"check-config: only for the command line"),
        ("zeromq-linger = 5\n[node]\nsample-period = 5", r"node.toml: node: there are no sections"),
        ("zeromq-linger = 5\nsample.period = 5", r"node.toml: sample: there are no sections .*, and no dots"),
        ("zeromq-linger = 5\nzeromq-linger = 6", r"node.toml: not TOML: Cannot overwrite a value"),
        ("zeromq-linger = 5\nsample-period 5", r"node.toml: not TOML: Expected '=' .*\(at line 2"),
        ("\nzeromq-linger = ", r"node.toml: not TOML: Invalid value"),
        ("[" * 5000, r"node.toml: not TOML"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_what_is_wrong_is_one_error_that_names_file_and_key(text, says):
    with pytest.raises(ConfigError, match=says) as error:
        values(text)
    assert "\n" not in str(error.value)


def test_the_value_of_a_wrong_type_is_not_shown():
    with pytest.raises(ConfigError) as error:
        values("http-credentials = ['bob:secret']", "collector")
    assert "secret" not in str(error.value)


@given(st.text(alphabet=st.sampled_from("sample-period=5.0\"'[]{}\n# ,nice_true\\u0"), max_size=200))
@example("[a]\n[a.b]")
@example("\ufeffzeromq-linger = 5")
def test_whatever_the_text_it_is_values_or_one_error(text):
    try:
        found = values(text)
    except ConfigError as err:
        assert str(err).startswith("node.toml") and "\n" not in str(err)  # noqa: PT017
    else:
        assert found.keys() <= vars(BUILDS["node"]().parse_args([])).keys()


# -- the file itself --


def refused(path, *arguments):
    with pytest.raises(ConfigError) as error:
        Configuration(BUILDS["node"], ["--config", str(path), *arguments]).read()
    return str(error.value)


def test_a_file_that_cannot_be_one_is_refused(tmp_path):
    assert refused(tmp_path / "none.toml").endswith("none.toml: No such file or directory")
    assert refused(tmp_path).endswith("Is a directory")
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").endswith("not a regular file")
    assert refused("/dev/zero").endswith("not a regular file")
    large = tmp_path / "large.toml"
    large.write_text("#" * (MAX_BYTES + 1))
    assert refused(large).endswith(f"larger than {MAX_BYTES} bytes")
    large.write_text("#" * MAX_BYTES)
    assert Configuration(BUILDS["node"], ["--config", str(large)]).read().zeromq_linger == 0
    large.write_bytes(b"zeromq-linger = 5\n# \xe9\n")
    assert refused(large).endswith("large.toml:2: not UTF-8")


@pytest.mark.parametrize(
    ("mode", "owner", "is_taken"), [(0o644, 0, True), (0o664, 0, False), (0o606, 0, False), (0o600, 7, False)]
)
def test_what_root_is_to_do_is_said_in_a_file_that_only_root_can_write(tmp_path, other_owner, mode, owner, is_taken):
    path = tmp_path / "node.toml"
    path.write_text("zeromq-linger = 7\n")
    path.chmod(mode)
    os.chown(path, owner, 0)
    if is_taken:
        assert Configuration(BUILDS["node"], ["--config", str(path)]).read().zeromq_linger == 7
    else:
        assert "others than root can write it" in refused(path)


def test_a_user_that_is_not_root_reads_what_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration.os, "geteuid", lambda: 1000)
    path = tmp_path / "node.toml"
    path.write_text("zeromq-linger = 7\n")
    path.chmod(0o666)
    assert Configuration(BUILDS["node"], ["--config", str(path)]).read().zeromq_linger == 7


@pytest.mark.parametrize(
    ("module", "text"), [("colmet.node.main", ""), ("colmet.collector.main", "enable-stdout-backend = true\n")]
)
def test_check_config_says_whether_the_file_can_be_used(tmp_path, module, text):
    path = tmp_path / "x.toml"

    def check(text):
        path.write_text(text)
        return subprocess.run(
            [sys.executable, "-m", module, "--config", str(path), "--check-config"],
            capture_output=True, text=True, check=False, timeout=60, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    good = check(f"{text}sample-period = 2\n")
    assert (good.returncode, good.stdout, good.stderr) == (0, f"OK: {path}\n", "")
    bad = check("\nsample-perod = 2\n")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert (
        bad.stderr.count("\n") == 1
        and f"{path}: sample-perod: no such option; did you mean sample-period?" in bad.stderr
    )
