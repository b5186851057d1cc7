"""Each Debian package runs with the Python modules of its own dependencies: those of the others may not be there."""

from __future__ import annotations

import pytest

from tests.support.packages import COMMANDS, PICTURES, ROOMS, RUN, imports, modules_of, programs_of, run, sources


def test_the_lists_of_dependencies_are_read():
    assert modules_of("colmet-node") == {"msgpack", "numpy", "zmq", "pyinotify", "requests"}
    assert "fastapi" in modules_of("colmet-collector", "Recommends") - modules_of("colmet-collector")


@pytest.mark.slow
@pytest.mark.parametrize("package", ROOMS)
def test_a_package_alone_imports_every_module_of_its_rooms(package):
    rooms, fields = ROOMS[package]
    run(package, imports([name for name in sources(rooms) if name not in PICTURES]), *fields)


def test_every_module_is_in_a_room_that_a_package_runs():
    rooms = {room for one, _ in ROOMS.values() for room in one}
    assert set(sources()) - set(sources(rooms)) - set(sources(["colmet.commands"])) == {"colmet"}


@pytest.mark.slow
@pytest.mark.parametrize("package", ROOMS)
def test_a_package_alone_runs_every_program_and_command_of_it(package):
    programs = programs_of(package)
    assert len(programs) > len(COMMANDS.get(package, ())) + 1
    run(package, RUN.format(programs=programs))


@pytest.mark.slow
def test_a_collector_without_a_web_server_lists_tables_and_completes_commands():
    run("colmet-collector", "from colmet.commands import plot; from colmet.common.tables import schemas; schemas()")
    run("colmet-collector", "from colmet.commands import completion; completion.script('bash', completion.trees())")


@pytest.mark.slow
def test_a_login_node_asks_over_http_with_the_common_package_alone():
    names = ("login", "logout", "jobs", "usage", "report", "extract", "plot", "top")
    run("colmet-common", imports([f"colmet.commands.{name}" for name in (*names, "histories")]))
    refused = "assert colmet.main([*command, '--url', 'http://127.0.0.1:1']) == 1, command"
    commands = [("jobs",), ("usage",), ("report", "1", "--json"), ("extract", "-j", "1"), ("top", "--json")]
    run("colmet-common", f"from colmet.commands import colmet\nfor command in {commands!r}: {refused}")


@pytest.mark.slow
def test_the_node_alone_completes_its_commands():
    code = "from colmet.commands import completion; assert {'colmet', 'colmet-node'} <= set(completion.trees())"
    run("colmet-node", code)
