"""colmet status: the text, the check and its thresholds."""

from __future__ import annotations

import json

import pytest

from colmet.commands import colmet
from colmet.commands import status as module
from colmet.commands.status import describe
from colmet.common.daemon import control
from colmet.common.daemon.checks import Level
from colmet.common.daemon.control import Control
from colmet.common.daemon.status_checks import judge
from tests.support.status_answers import COLLECTOR, NODE, changed

OK, WARNING, CRITICAL, _ = Level

UNHEARD = {"collectors.0.there": False, "collectors.0.state": "not heard of yet"}


@pytest.mark.parametrize(
    ("status", "changes", "level", "text"),
    [
        (NODE, {}, OK, "last sample 1.2 s ago, 3 jobs"),
        (NODE, {"last_tick_age_s": 59}, OK, "last sample 59.0 s ago"),
        (NODE, {"last_tick_age_s": 61}, CRITICAL, "no sample for 61.0 s"),
        (NODE, {"last_tick_age_s": 61, "period_s": 30.0}, OK, "last sample"),
        (NODE, {"last_tick_age_s": None}, CRITICAL, "no sample in the 2.0 h since the start"),
        (NODE, {"last_tick_age_s": None, "uptime_s": 3.0}, OK, "started, no sample yet"),
        (NODE, {"backends.0.on": False}, WARNING, "off: taskstats"),
        (NODE, {"last_hour.dropped": 7}, WARNING, "7 dropped in the last hour"),
        (NODE, {"last_hour.jobs_without_rows": 700, "last_hour.overruns": 10}, OK, "last sample"),
        (NODE, {"last_hour.overruns": 11, "last_tick_age_s": 100}, CRITICAL, "no sample for 2 min; 11 overruns"),
        (NODE, {"plugins": {"loaded": 0, "failed": 1}}, WARNING, "1 plug-in not loaded, see the log"),
        (COLLECTOR, {"plugins": {"loaded": 1, "failed": 2}}, WARNING, "2 plug-ins not loaded, see the log"),
        (NODE, {"behind_s": 299}, OK, "last sample"),
        (NODE, {**UNHEARD, "collectors.0.since_s": 9}, OK, "last sample"),
        (NODE, {**UNHEARD, "collectors.0.since_s": 11}, WARNING, "tcp://head:5556 not heard of yet for 11.0 s"),
        (
            NODE,
            {**UNHEARD, "collectors.0.state": "away", "collectors.0.since_s": 1},
            WARNING,
            "head:5556 away for 1.0 s",
        ),
        (NODE, {**UNHEARD, "collectors.0.state": "takes no data"}, WARNING, "takes no data for 2.0 h"),
        (NODE, {"collectors.0.mute": True}, WARNING, "acknowledges nothing: its second port is closed"),
        (NODE, {"last_hour.reload_failures": 1}, WARNING, "1 reload failure in the last hour"),
        (NODE, {"behind_s": 301}, WARNING, "batches wait to be acknowledged for 5 min"),
        (COLLECTOR, {}, OK, "800 nodes heard"),
        (
            COLLECTOR,
            {"senders.silent": 3, "senders.worst.0.silent": True},
            WARNING,
            "3 of 803 nodes silent, such as node-1",
        ),
        (COLLECTOR, {"senders.silent": 3, "senders.heard": 0}, CRITICAL, "3 of 3 nodes silent"),
        (COLLECTOR, {"senders.heard": 0}, WARNING, "no node has been heard in the 25.0 h since the start"),
        (COLLECTOR, {"senders.heard": 0, "uptime_s": 59.0}, OK, "0 nodes heard"),
        (COLLECTOR, {"senders.ahead": {"n1": 600.0}}, WARNING, "clocks are ahead of this machine's: n1 (10 min)"),
        (
            COLLECTOR,
            {"senders.lag_max_s": 301, "senders.worst.0.lag_s": 301},
            WARNING,
            "or a node catches up: node-1 (5 min)",
        ),
        (COLLECTOR, {"senders.lag_max_s": 301}, WARNING, "or a node catches up: a node (5 min)"),
        (COLLECTOR, {"senders.without_acknowledgements": 1}, WARNING, "1 node without acknowledgements"),
        (COLLECTOR, {"link_failed": "Address in use"}, WARNING, "nothing is acknowledged, Address in use"),
        (COLLECTOR, {"http": {"running": 0}}, WARNING, "process of the JSON interface and the page does not run"),
        (COLLECTOR, {"senders.shared_names": {"n1": ["[10.0.0.1]", "[10.0.0.2]"]}}, WARNING, "two machines send as n1"),
        (COLLECTOR, {"last_hour.refused_documents": 1}, WARNING, "1 refused document in the last hour"),
        (COLLECTOR, {"outputs.0.behind_s": 301}, WARNING, "hdf5 is 5 min behind"),
        (
            COLLECTOR,
            {"outputs.0.available": False, "outputs.0.away_s": 5, "outputs.0.why": "no | space\nleft"},
            WARNING,
            "hdf5 away for 5.0 s: no / space left",
        ),
        (COLLECTOR, {"outputs.0.available": False, "outputs.0.away_s": 500}, CRITICAL, "hdf5 away for 8 min"),
        (COLLECTOR, {"journal.why": "No space left on device"}, CRITICAL, "journal cannot be written to: No space"),
        (COLLECTOR, {"outputs.0.set_aside": ["/x.hdf5.damaged"]}, CRITICAL, "damaged file set aside: /x.hdf5.damaged"),
        (COLLECTOR, {"journal.full": True}, CRITICAL, "nothing is received, the journal is full"),
        (
            *(COLLECTOR, {"last_hour.limited_messages": 2, "senders.worst.0.limited": 7}, WARNING),
            "2 limited messages in the last hour, most from ",
        ),
        (COLLECTOR, {"last_hour.unwritten_rows": 2}, CRITICAL, "2 unwritten rows in the last hour"),
        (COLLECTOR, {"last_hour.missing_batches": 1200}, WARNING, "1,200 missing batches in the last hour"),
    ],
)
def test_the_check_warns_of(status, changes, level, text):
    for path, value in changes.items():
        status = changed(status, path, value)
    verdict = judge(status, 60, 300)
    line = verdict.line(status["daemon"])
    assert verdict.level == level, line
    assert any(option in line for option in text.split("|")), line
    assert line.count("|") <= 1 and "\n" not in line


def test_one_of_several_collectors_that_accepts_data_is_enough():
    status = changed(NODE, "collectors.0.there", False)
    status["collectors"].append(NODE["collectors"][0])
    assert judge(status, 60, 300).level == OK


@pytest.mark.parametrize(
    ("status", "path", "value"),
    [
        (NODE, "collectors.0.mute", True),
        (COLLECTOR, "outputs.0.available", False),
        (COLLECTOR, "senders.ahead", {"n": 9}),
    ],
)
def test_nothing_went_wrong_only_where_the_check_says_so(status, path, value):
    status = {**status, "last_hour": {}}
    for one, wrong in ((status, False), (changed(status, path, value), True)):
        verdict = judge(one, 60, 300)
        assert (verdict.level != OK) == wrong
        assert ("in the last hour: nothing went wrong" in describe(one, verdict.level == OK)) != wrong


def test_the_verdict_has_a_line_for_each_thing_the_worst_first():
    status = changed(changed(NODE, "last_tick_age_s", 100), "backends.0.on", False)
    assert judge(status, 60, 300).lines("node") == [
        "colmet-node CRITICAL: no sample for 2 min",
        "colmet-node WARNING: off: taskstats",
    ]
    assert judge(NODE, 60, 300).lines("node") == ["colmet-node OK: last sample 1.2 s ago, 3 jobs"]


def test_the_thresholds_count():
    assert judge(changed(NODE, "last_tick_age_s", 61), 120, 300).level == OK
    assert judge(changed(COLLECTOR, "outputs.0.behind_s", 301), 60, 400).level == OK


@pytest.mark.parametrize(
    ("name", "why", "remedy"),
    [
        ("slurm", "squeue: no such program", "Environment=PATH=/opt/slurm/bin"),
        ("slurm", "squeue: returned 1: no controller", "`sudo -u colmet squeue`"),
        ("oar", "oarstat: returned 2", 'archive-batch = "oar=URL"'),
    ],
)
def test_a_batch_system_that_does_not_answer_is_a_warning_with_a_remedy(name, why, remedy):
    asked = [{"name": "gridengine", "why": "", "failing_s": 0.0}, {"name": name, "why": why, "failing_s": 600.0}]
    verdict = judge(changed(COLLECTOR, "outputs.0.batch_systems", asked), 60, 300)
    (finding,) = verdict.findings
    assert (verdict.level, finding.found) == (WARNING, f"batch system {name} has not answered for 10 min: {why}")
    assert remedy in finding.remedy


def test_the_check_has_figures_behind_a_bar():
    assert judge(NODE, 60, 300).line("node") == (
        "COLMET NODE OK - last sample 1.2 s ago, 3 jobs | age=1.2s tick=0.012s jobs=3"
    )


def test_the_nodes_text():
    lines = describe(changed(changed(NODE, "backends.0.on", False), "backends.0.why", "not root; be it"), counters=True)
    assert lines == [
        "colmet-node 1.0 on node-7, process 12, up 2.0 h",
        "last sample 1.2 s ago, took 12.0 ms; one every 5 s, 1,440 so far, 0 skipped",
        "3 jobs now, 1,200 since the start; 0.50 % of a CPU",
        "",
        "backend    state   rows  last rows  failures  CPU a sample",
        "taskstats  OFF    1,234  1.2 s ago         0       1.04 ms",
        "  taskstats is off: not root; be it",
        "",
        "collector        state  since  version",
        "tcp://head:5556  there  2.0 h      1.0",
        "batches: 1,440 sent, 1,439 acknowledged, 1 waiting, the oldest for 0.0 s; 0 dropped",
        "",
        "control: requests 7",
        "in the last hour: 2 jobs without rows",
    ]


def test_the_collectors_text():
    lines = describe(COLLECTOR)
    assert lines == [
        "colmet-collector 1.0 on head, process 12, up 25.0 h",
        "nodes: 800 heard, 0 silent; data are 0.0 s old (median), at most 1.0 s",
        "received: 5,000 batches, 9 rows; 0 missing, 0 twice, 0 refused, 0 limited",
        "journal: /var/j, 3.00 MiB",
        "",
        "output  state  rows written  messages waiting  behind  failures  lost  dropped",
        "hdf5    ok          123,456                 3  10.0 s         0     0        0",
        "",
        "sender      heard    lag  batches  missing  twice  refused  limited  version",
        "node-1  1.0 s ago  0.0 s        5        0      0        0        0  v1",
        "and 799 others; --all shows them",
        "",
        "in the last hour: nothing went wrong",
    ]


def test_messages_of_another_host_are_refused_ones():
    status = changed(changed(COLLECTOR, "senders.worst.0.rejects", 2), "senders.worst.0.foreign", 3)
    status = changed(changed(status, "received.foreign", 3), "senders.worst.0.limited", 70)
    text = describe(status)
    assert "0 twice, 3 refused" in text[2]
    assert [line.split()[-3:] for line in text if line.startswith("node-1")] == [["5", "70", "v1"]]


def test_a_text_without_a_sample_and_with_everything_wrong():
    assert describe(changed(NODE, "last_tick_age_s", None))[1:] == ["no sample yet"]
    status = COLLECTOR
    changes = {
        **{"journal.why": "disk full", "journal.full": True, "senders.gone": 2, "senders.lag_median_s": None},
        **{"outputs.0.available": False, "outputs.0.why": "disk full", "outputs.0.away_s": 10_000},
        **{"senders.worst.0.silent": True, "senders.worst.0.seen_age_s": None},
    }
    for path, value in changes.items():
        status = changed(status, path, value)
    text = "\n".join(describe(status))
    for part in (
        "2 gone for more than a day",
        "CANNOT BE WRITTEN TO: disk full; FULL",
        "AWAY for 2.8 h",
        "hdf5 is away: disk full",
        "SILENT, -",
    ):
        assert part in text


# -- the command --


@pytest.fixture
def daemon(tmp_path):
    """The place of a control socket that answers with a made-up status."""
    control = Control({"status": lambda request: {**NODE, "asked": request["max_age_s"]}})
    place = str(tmp_path / "node.sock")
    control.listen(place, "node")
    yield place
    control.close()


def test_the_command_prints_text_json_or_a_check(daemon, capsys):
    assert colmet.main(["status", "node", "--control-socket", daemon]) == 0
    text = "colmet-node OK: last sample 1.2 s ago, 3 jobs\ncolmet-node 1.0 on node-7"
    assert capsys.readouterr().out.startswith(text)
    assert colmet.main(["status", "--control-socket", daemon]) == 0
    assert capsys.readouterr().out.startswith(text)
    assert colmet.main(["status", "node", "--control-socket", daemon, "--json", "--max-age", "7"]) == 0
    assert json.loads(capsys.readouterr().out) == {**NODE, "asked": 7}
    assert colmet.main(["status", "node", "--control-socket", daemon, "--check", "--max-age", "1"]) == 0
    assert capsys.readouterr().out.startswith("COLMET NODE OK - ")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """This machine: no daemon, no configuration; `here(side)` starts one that answers with a made-up status."""
    monkeypatch.setattr(control, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(module, "CONFIGURATION", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    started = []

    def start(side, answer):
        started.append(Control({"status": lambda request: answer}))
        started[-1].listen(str(tmp_path / f"{side}.sock"), side)

    yield start
    for one in started:
        one.close()


def test_without_an_argument_what_runs_here_is_reported(here, capsys, tmp_path):
    here("collector", COLLECTOR)
    assert colmet.main(["status"]) == 0
    assert capsys.readouterr().out.startswith("colmet-collector OK: 800 nodes heard\ncolmet-collector 1.0 on head")
    here("node", changed(NODE, "backends.0.on", False))
    assert colmet.main(["status"]) == 0
    node, collector = capsys.readouterr().out.split("\n\ncolmet-collector OK")
    assert node.startswith("colmet-node WARNING: off: taskstats\ncolmet-node 1.0") and "800 nodes heard" in collector
    assert colmet.main(["status", "--check"]) == WARNING
    assert [line.split(" - ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "COLMET NODE WARNING",
        "COLMET COLLECTOR OK",
    ]
    assert colmet.main(["status", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["node", "collector"]


def test_a_daemon_that_is_set_up_here_and_does_not_run_is_reported(here, capsys, tmp_path):
    here("collector", COLLECTOR)
    (tmp_path / "node.toml").touch()
    assert colmet.main(["status"]) == 1
    assert capsys.readouterr().out.startswith("colmet-node CRITICAL: no colmet-node listens on ")
    assert colmet.main(["status", "--check"]) == CRITICAL


def test_where_no_daemon_runs_that_is_said(here, capsys):
    assert colmet.main(["status"]) == 1
    assert "neither colmet-node nor colmet-collector runs or is set up here" in capsys.readouterr().err
    assert colmet.main(["status", "--check"]) == CRITICAL


def test_a_check_that_cannot_ask_as_its_options_are_is_unknown(capsys):
    assert colmet.main(["status", "node", "--control-socket", "tcp://127.0.0.1:1", "--check"]) == 3
    assert capsys.readouterr().out.startswith("COLMET NODE UNKNOWN - --control-socket tcp://127.0.0.1:1: not a path")


def test_a_check_of_a_daemon_that_is_away_is_critical_and_one_line(tmp_path, capsys):
    assert colmet.main(["status", "node", "--control-socket", str(tmp_path / "no.sock"), "--check"]) == 2
    out, err = capsys.readouterr()
    assert out == f"COLMET NODE CRITICAL - no daemon listens on {tmp_path}/no.sock\n" and not err


def test_removed_old_files_are_printed_with_the_output_that_removed_them():
    counts = {"files_removed": 2, "bytes_removed": 3 << 30, "files_not_removed": 1}
    text = "\n".join(describe(changed(COLLECTOR, "outputs.0", {**COLLECTOR["outputs"][0], **counts})))
    assert "hdf5 removed 2 old files (3.00 GiB); 1 could not be removed" in text
    assert "removed" not in "\n".join(
        describe(changed(COLLECTOR, "outputs.0", {**COLLECTOR["outputs"][0], **dict.fromkeys(counts, 0)}))
    )


def test_the_archive_has_a_line_of_its_own():
    counts = {"name": "archive", "open": 1234, "size_bytes": 5 << 20, "jobs_removed": 7, "late_rows": 0}
    text = "\n".join(describe(changed(COLLECTOR, "outputs.0", {**COLLECTOR["outputs"][0], **counts})))
    assert "  archive: 1,234 unfinished summaries, 5.00 MiB, 7 old jobs removed\n" in text + "\n"
