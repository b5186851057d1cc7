"""`colmet mem` and `qmemview`: asked of a real server, on a terminal, in a pipe, and where something is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from colmet.commands import colmet, remote
from colmet.common.errors import ConfigError
from colmet.gridengine import command, qmemview, text
from colmet.gridengine.model import GIB, HostMemory, JobMemory, MemoryReport
from colmet.gridengine.server import checked_address
from tests.support import endpoint_server
from tests.support.place import require_programs
from tests.support.qmem_server import DATA, serving

MAY = ", or you may not see it"
EVIL = "\x1b[2J\u202e中\t\r\nmallory"


@pytest.fixture
def server():
    with serving() as one:
        yield one


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """Nothing of who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("COLMET_TOKEN", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def mem(*argv):
    return colmet.main(["mem", *argv])


def failed(capsys, *argv, status=1):
    """What is said where the command fails: one line."""
    assert mem(*argv) == status
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and err.startswith("colmet mem: ")
    return err


def cells(out):
    """The lines with tabs."""
    return [line.split("\t") for line in out.splitlines() if "\t" in line]


def page(memory, width=80, details=True, titles=text.SHORT_TITLES, **more):
    """What a terminal without colours shows."""
    console = Console(*(), width=width, height=30, record=True, file=io.StringIO(), no_color=True, force_terminal=True)
    command.show_table(memory, details, titles, console=console, **more)
    shown = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", console.file.getvalue()).rstrip("\n").split("\n")
    assert all(len(line) <= width for line in shown)
    return [line.rstrip() for line in shown]


def memory_of(*hosts):
    return MemoryReport(hosts, 0, 0)


def host_of(name="n1", total=16.0, jobs=(), processors=8, **more):
    total = None if total is None else total * GIB
    reserved = sum([job.reserved or 0 for job in jobs])
    return HostMemory(name, processors, total, jobs, more.pop("reserved_by_all", reserved), **more)


def job_of(used=1.0, reserved=2.0, job="7", owner="alice", name="x", master=True, slots=1):
    used, reserved = [None if one is None else one * GIB for one in (used, reserved)]
    return JobMemory(job, owner, name, master, slots, used, reserved)


# -- in a pipe --


def test_in_a_pipe_hosts_are_lines_of_columns_with_tabs_between_them(server, capsys):
    assert mem(f"http://{server.place}") == 0
    out, err = capsys.readouterr()
    assert not err
    assert cells(out) == [
        ["HOSTNAME", "USAGE", "PERCENT", "USED", "RESERVED", "TOTAL", "AVAILABLE", "SLOTS"],
        ["node1", "#" * 4 + "=" * 10 + "." * 26, "26.6", "4.25G", "16.00G", "47.30G", "31.30G", "6/8"],
        ["node2", "#" * 8 + "=" * 2 + "." * 30, "75.0", "9.75G", "9.00G", "47.30G", "38.30G", "4/8"],
        ["node3", "." * 40, "0.0", "0.00G", "0.00G", "0.50G", "0.50G", "0/4"],
        ["node10", "-", "0.0", "0.00G", "0.00G", "-", "-", "0/-"],
        ["Used (#)", "Reserved (=)", "Available (.)"],
    ]
    assert [path for path, _ in server.asked] == ["/qhost", "/qstat"]
    qmemview.main([server.place])
    assert cells(capsys.readouterr().out)[0] == [
        *("HOSTNAME", "USAGE", "PERCENTAGE", "MEMORY NEEDED", "MEMORY USED"),
        *("TOTAL MEMORY", "AVAILABLE MEM", "SLOTS"),
    ]


def test_details_are_lines_below_their_host_between_dashes(server, capsys):
    assert mem(server.place, "-d", "--host", "node2") == 0
    out, _ = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("HOSTNAME\t") and set(lines[1]) == set(lines[3]) == {"-"}
    assert cells(out)[2:-1] == [
        ["Master", "2.3", "bob", "array", "75.0", "0.75G", "1.00G", "1/8"],
        ["", "3", "alice", "parallel-with-a", "75.0", "6.00G", "8.00G", "2/8"],
        ["Master", "4", "carol", "modest", "-", "3.00G", "-", "1/8"],
    ]


@pytest.mark.parametrize(
    ("argv", "of_old", "jobs", "said"),
    [
        (["-j", "3"], ["-j", "3"], ["3", "3"], ""),
        (["--job=2.1"], ["--jobid=2.1"], ["2.1"], ""),
        (["-u", "bob"], ["-o", "bob"], ["2.1", "2.2", "2.3"], ""),
        (["--user", "bob", "--host", "node1"], ["--owner", "bob", "--hostname", "node1"], ["2.1", "2.2"], ""),
        (["-d", "--host=node1"], ["-u", "-hnode1"], ["1", "2.1", "2.2", "3"], ""),
        (["-j", "17"], ["-j", "17"], [], "there is no job 17" + MAY),
        (["-u", "zoe"], ["-o", "zoe"], [], "user zoe has no job" + MAY),
        (["-u", "bob", "--host", "node3"], ["-o", "bob", "-h", "node3"], [], "user bob has no job on node3" + MAY),
    ],
)
def test_a_choice_of_jobs_has_details_with_it(server, capsys, argv, of_old, jobs, said):
    for run, options in ((mem, argv), (lambda *argv: qmemview.main(argv), of_old)):
        assert run(server.place, *options) == 0
        out, err = capsys.readouterr()
        assert [row[1] for row in cells(out) if row[0] in ("Master", "")] == jobs
        assert err.partition(": ")[2].rstrip("\n") == said


def test_reservations_of_jobs_that_are_not_shown_are_in_the_bar_and_not_available(server, capsys):
    mem(server.place, "-u", "carol")
    rows = cells(capsys.readouterr().out)
    bar = "###-------" + "." * 30
    assert rows[1] == ["node2", bar, "-", "3.00G", "-", "47.30G", "38.30G", "1/8"]
    assert "Reserved by jobs that are not shown (-)" in rows[-1]


def test_a_host_that_is_not_there_is_said_so(server, capsys):
    assert mem(server.place, "--host", f"bob{EVIL}") == 0
    out, err = capsys.readouterr()
    assert len(cells(out)) == 2
    assert err == "colmet mem: there is no host bob?[2J?????mallory\n"
    mem(server.place, "--host", "nod3")
    assert capsys.readouterr().err == "colmet mem: there is no host nod3; did you mean node3?\n"


def test_json_has_bytes_and_nothing_for_what_is_not_known(server, capsys):
    assert mem(server.place, "--json", "-d") == 0
    report = json.loads(capsys.readouterr().out)
    hosts = {host["host"]: host for host in report["hosts"]}
    assert hosts["node2"]["reserved"] == 9 * GIB and hosts["node2"]["slots"] == 4
    assert hosts["node10"]["total"] is hosts["node10"]["available"] is None
    carol = hosts["node2"]["jobs"][-1]
    assert (carol["job"], carol["used"], carol["reserved"], carol["share"]) == ("4", 3 * GIB, None, None)
    assert (report["untold"], report["unread"]) == (0, 0)
    mem(server.place, "--json")
    assert "jobs" not in json.loads(capsys.readouterr().out)["hosts"][0]


def test_names_reach_the_output_as_what_they_are_not_as_what_they_do(server, capsys):
    job = {"jobcount": 1, "master": True, "taskid": [], "owner": EVIL, "jobname": EVIL}
    server.tell("qhost", {EVIL: {"num_proc": "8", "mem_total": "1G", "jobs": {EVIL: job}}})
    server.tell("qstat", {EVIL: {"uid": EVIL, "jobs": {}}})
    assert mem(server.place, "-d") == 0
    out, err = capsys.readouterr()
    clean = "?[2J?????mallory"
    assert cells(out)[1][0] == clean and cells(out)[2][:4] == ["Master", clean, clean, clean[:15]]
    assert out.replace("\n", "").replace("\t", "").isprintable()
    assert err == "colmet mem: 1 job: its memory use on some host is not known; sums leave it out\n"


def test_what_a_real_cell_of_grid_engine_said_is_reported_as_a_hand_counts_it(server, capsys):
    for name in ("qhost", "qstat"):
        server.answers[f"/{name}"] = (DATA / f"cell-{name}.json").read_bytes()
    assert mem(server.place, "-d") == 0
    out, err = capsys.readouterr()
    of = {row[1]: row for row in cells(out) if row[0] == "Master"}
    hosts = {row[0]: row for row in cells(out) if row[0].startswith("node")}
    # job 2 asked for nothing; 3 tasks of 512M, 2 slots of 200m (SI), 256M and 2 slots of 2G
    assert hosts["node1"][2:] == ["3.3", "0.20G", "6.12G", "23.50G", "17.38G", "9/2"]
    # 1G, 3 slots of 300M, 2 of 200m, 256M, 2 of 2G, two tasks with 2 slots of 100M each, and one task of 10M
    assert hosts["node2"][2:] == ["10.1", "0.29G", "6.90G", "23.50G", "16.60G", "14/2"]
    assert of["3.2"][4:] == ["6.8", "0.03G", "0.50G", "1/2"] and of["8.1"][6:] == ["0.20G", "2/2"]
    assert of["2"][4:] == ["-", "0.00G", "-", "1/2"] and of["4"][4:] == ["10.5", "0.09G", "0.88G", "3/2"]
    assert err.startswith("colmet mem: 1 job: its memory use"), (
        "job 7 has just begun, and its slave has reported nothing yet"
    )


# -- who asks --


def test_the_token_of_the_environment_or_the_kept_login_is_sent(server, capsys, monkeypatch):
    server.answers["/api/v1/whoami"] = b'{"user": "root", "admin": true}'
    monkeypatch.setenv("COLMET_TOKEN", "t0ken")
    assert mem(server.place) == 0
    monkeypatch.delenv("COLMET_TOKEN")
    remote.keep_login(f"http://{server.place}", remote.Login(remote.BEARER, "kept"))
    assert mem(server.place) == 0
    said = [headers["Authorization"] for path, headers in server.asked if path == "/qhost"]
    assert said == ["Bearer t0ken", "Bearer kept"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "available"),
    [
        (b'{"user": "alice", "admin": false}', {"-"}),
        (b'{"user": "alice"}', {"-"}),
        (b"nonsense", {"-"}),
        ((500, {}, b""), {"-"}),
        (b'{"user": "root", "admin": true}', {"31.30G", "38.30G", "0.50G", "-"}),
        ((404, {}, b""), {"31.30G", "38.30G", "0.50G", "-"}),
    ],
)
def test_what_is_available_is_shown_to_those_alone_who_see_all_jobs(server, capsys, monkeypatch, answer, available):
    monkeypatch.setenv("COLMET_TOKEN", "t0ken")
    server.answers["/api/v1/whoami"] = answer
    assert mem(server.place) == 0
    out, err = capsys.readouterr()
    assert {row[6] for row in cells(out)[1:-1]} == available
    assert ("your own jobs only" in err) == (available == {"-"})


def test_a_secret_that_the_server_does_not_know_is_said_so(server, capsys, monkeypatch):
    server.answers["/qhost"] = (401, {}, b"")
    assert "requires a login: colmet login" in failed(capsys, server.place)
    monkeypatch.setenv("COLMET_TOKEN", "t0ken")
    assert "refused the login" in failed(capsys, server.place)


def test_a_secret_that_goes_in_clear_to_another_machine_is_warned_of(monkeypatch, caplog):
    from colmet.gridengine.server import QmemClient

    monkeypatch.setenv("COLMET_TOKEN", "t0ken")
    QmemClient("http://192.0.2.1:8080")
    assert "can be read on the way" in caplog.text
    caplog.clear()
    for url in ("http://localhost:8080", "http://[::1]:8080", "https://192.0.2.1"):
        QmemClient(url)
    assert not caplog.text


@pytest.mark.parametrize(
    ("argv", "token", "said"),
    [
        ([], "x y", "COLMET_TOKEN of the environment: not a token"),
        (["--ca-file", "SECRET"], "", "--ca-file"),
        (["--ca-file", "/nowhere"], "", "No such file"),
    ],
)
def test_what_cannot_be_asked_with_is_one_line_and_status_2(server, capsys, tmp_path, monkeypatch, argv, token, said):
    (tmp_path / "SECRET").write_text("x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLMET_TOKEN", token)
    assert said in failed(capsys, server.place, *argv, status=2)
    assert not server.asked


# -- servers that do not answer, or not so --


def closes(handler):
    handler.close_connection = True
    handler.connection.close()


def hangs(handler):
    handler.server.ended.wait(60)


def drips(handler):
    """An answer of which a byte comes now and then, so that no time-out of one read ends it."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not handler.server.ended.wait(0.05):
        handler.wfile.write(b" ")


def speaks_otherwise(handler):
    handler.wfile.write(b"220 \x1b[2Jmail.example.org ESMTP\r\n")


def is_endless(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.ended.is_set():
        handler.wfile.write(b" " * (1 << 20))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b'{"success": false, "message": "No data for qhost", "data": {}}',
            "No data for qhost: no node has sent anything",
        ),
        (b'{"success": false, "message": "\\u001b[2Jno", "data": {}}', "?[2Jno"),
        (b'{"success": false, "message": "", "data": {}}', "does not say why"),
        (b"<html>", "not JSON"),
        (b"{}", "does colmet-web"),
        (b'{"success": true, "data": {"\\u001b[2J": 7}}', r"data['\x1b[2J'] is 7, not an object"),
        ((404, {}, b""), "status 404; is it colmet-web?"),
        ((429, {"Retry-After": "0"}, b'{"error": "too many"}'), "too many"),
        ((302, {"Location": "https://elsewhere/\x1b[2J"}, b""), r"the interface is at 'https://elsewhere/\x1b[2J'"),
        ((500, {}, b""), "status 500"),
        ((200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"), "not JSON"),
        (closes, "closed connection"),
        (speaks_otherwise, "no answer of HTTP"),
    ],
)
@pytest.mark.parametrize("name", ["qhost", "qstat"])
def test_an_answer_that_is_none_is_one_line_and_status_1(server, capsys, name, answer, said):
    server.answers[f"/{name}"] = answer
    err = failed(capsys, server.place)
    assert said in err and err.rstrip("\n").isprintable()
    assert qmemview.main([server.place]) == 1
    assert said in capsys.readouterr().err
    assert all(path in ("/qhost", "/qstat") for path, _ in server.asked), "nobody is followed anywhere"


@pytest.mark.parametrize("answer", [hangs, drips])
def test_a_server_that_is_too_slow_is_left(server, capsys, answer, monkeypatch):
    server.answers["/qhost"] = answer
    monkeypatch.setattr("colmet.commands.remote.TIMEOUT_S", 0.3)
    assert "no whole answer within 0.3 s" in failed(capsys, server.place)


def test_an_answer_without_end_is_bounded(server, capsys, monkeypatch):
    monkeypatch.setattr("colmet.commands.remote.MAX_BYTES", 3 << 20)
    server.answers["/qhost"] = is_endless
    assert "more than 3 MiB" in failed(capsys, server.place)


def test_no_server_is_one_line_and_status_1(capsys):
    with serving() as gone:
        place = gone.place
    assert "Connection refused; is it colmet-web?" in failed(capsys, place)
    assert qmemview.main([place]) == 1


def test_https_accepts_a_certificate_that_is_trusted_and_of_this_name(tmp_path, capsys):
    require_programs("openssl")
    certificate = endpoint_server.certificate(tmp_path, "head")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with serving(context) as server:
        port = server.place.rpartition(":")[2]
        assert mem(f"https://127.0.0.1:{port}", "--ca-file", certificate[0]) == 0
        assert "node1\t" in capsys.readouterr().out
        assert "--ca-file" in failed(capsys, f"https://127.0.0.1:{port}")
        said = failed(capsys, f"https://localhost:{port}", "--ca-file", certificate[0])
        assert "localhost" in said and "URL with a name that is in it" in said and "--ca-file" not in said
    with serving() as server:
        assert "no TLS" in failed(capsys, f"https://{server.place}")


# -- where the server is --


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("head:8080", "http://head:8080"),
        ("http://head:8080/", "http://head:8080"),
        ("https://head.example.org", "https://head.example.org"),
        ("https://[::1]:8080/colmet/", "https://[::1]:8080/colmet"),
    ],
)
def test_a_server_is_a_url_or_host_and_port(given, url):
    assert checked_address(given) == url


@pytest.mark.parametrize(
    "given",
    [
        *("head", "head:", ":80", "a:b:80", "head:0", "head:65536", "head:8x", "::1:80", "head:80/", "a@b:80", ""),
        *("ftp://head:80", "http://", "http://head:x", "http://head:80?x", "http://u:p@head:80", "http://he ad:80"),
        *("http://head:80/\x1b[2J", "h\x1bd:80", "x" * 300 + ":80", "http://[::1", "http://head:99999"),
    ],
)
def test_what_is_no_server_is_refused_by_one_line(given, capsys):
    assert qmemview.main([given]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.rstrip("\n").isprintable() and "u:p" not in err
    with pytest.raises(ConfigError):
        checked_address(given)


# -- the old command line --


@pytest.mark.parametrize("argv", [[], ["-h"], ["head:8080", "-h"]])
def test_the_old_usage_is_status_2(argv, capsys):
    assert qmemview.main(argv) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("qmemview: ") and "usage: qmemview" in err


@pytest.mark.parametrize("argv", [["head:8080", "--nonsense"], ["head:8080", "-j"], ["-u"], ["a:1", "b:2"]])
def test_a_wrong_command_line_is_one_line_and_status_2(argv, capsys):
    with pytest.raises(SystemExit) as end:
        qmemview.main(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_short_help_is_a_host_of_the_old_name_alone(capsys):
    for main, name in (
        (lambda: colmet.main(["mem", "-h"]), "-h, --help"),
        (lambda: qmemview.main(["--help"]), "-h, --hostname HOST"),
    ):
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0 and f"\n  {name} " in capsys.readouterr().out


def test_the_old_program_is_one_that_a_pipe_may_leave(server):
    read, write = os.pipe()
    os.close(read)
    left = subprocess.run(
        [sys.executable, "-m", "colmet.gridengine.qmemview", server.place],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(write)
    assert (left.returncode, left.stderr) == (141, "")


# -- on a terminal --


def test_on_a_terminal_columns_are_below_each_other():
    jobs = [job_of(job="7.1", name="a long name for a job"), job_of(None, None, "8", "b", master=False)]
    shown = page(memory_of(host_of(jobs=jobs), host_of("node-22", total=None, processors=None)), 80)
    assert shown == [
        "HOSTNAME USAGE                     PERCENT  USED RESERVED  TOTAL AVAILABLE SLOTS",
        "n1       ##=......................    50.0 1.00G    2.00G 16.00G    14.00G   2/8",
        "  Master 7.1 alice a long name for    50.0 1.00G    2.00G                    1/8",
        "         8   b     x                     -     -        -                    1/8",
        "node-22                                0.0 0.00G    0.00G      -         -   0/-",
        "",
        "# Used  = Reserved  . Available",
    ]
    assert len(shown[0]) == 80


@pytest.mark.parametrize(
    ("used", "reserved", "others", "expected"),
    [
        (0, 0, 0, "." * 40),
        (4, 8, 0, "#" * 10 + "=" * 10 + "." * 20),
        (8, 4, 0, "#" * 20 + "." * 20),
        (0, 16, 0, "=" * 40),
        (4, 32, 0, "#" * 10 + "=" * 30),
        (32, 0, 0, "#" * 40),
        (1 / 1024, 2 / 1024, 0, "#=" + "." * 38),
        (4, 4, 4, "#" * 10 + "-" * 10 + "." * 20),
        (4, 8, 32, "#" * 10 + "=" * 10 + "-" * 20),
        (None, 8, 0, "=" * 20 + "." * 20),
        (8, None, 0, "#" * 20 + "." * 20),
    ],
)
def test_a_bar_has_what_is_used_what_is_reserved_beyond_it_and_what_is_left(used, reserved, others, expected):
    job = job_of(used, reserved)
    host = host_of(jobs=[job], reserved_by_all=(reserved or 0) * GIB + others * GIB)
    parts = text.bar(host)
    assert "".join([kind.sign * length for kind, length in parts]) == expected
    assert sum([length for _, length in text.bar(host, 10)]) == 10


def test_whoever_sees_some_jobs_only_sees_no_available_memory():
    host = host_of(jobs=[job_of(4, 8)], knows_all=False)
    assert text.bar(host)[-1] == (text.HIDDEN, 20)
    assert page(memory_of(host))[-1] == "# Used  = Reserved  - Available, or other users'"


def terminal_of(monkeypatch):
    """A standard output that is a terminal, as far as Python can tell; from the test itself, as pytest has its own."""
    made = type("Terminal", (io.StringIO,), {"isatty": lambda _: True})()
    monkeypatch.setattr("sys.stdout", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    return made


def test_a_terminal_has_colours_unless_nobody_wants_them(server, monkeypatch):
    terminal = terminal_of(monkeypatch)
    assert mem(server.place) == 0
    assert "\x1b[31m##" in terminal.getvalue() and "\x1b[34m=" in terminal.getvalue()
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    assert mem(server.place) == 0
    assert "#=" in terminal.getvalue() and "\x1b[31m" not in terminal.getvalue()


def test_a_terminal_that_can_nothing_and_one_without_rich_get_what_a_pipe_gets(server, monkeypatch):
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    assert mem(server.place) == 0
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert mem(server.place) == 0
    assert terminal.getvalue().count("HOSTNAME\tUSAGE\t") == 2


def test_the_page_that_documents_it_names_every_option():
    documented = (Path(__file__).parents[2] / "docs/tools/mem.md").read_text()
    parser = colmet.cli.Parser(prog="colmet mem")
    command.add_options(parser)
    names = {name for action in parser.actions for name in action.option_strings}
    assert len(names) > 10 and not [name for name in names if f"`{name}" not in documented]
