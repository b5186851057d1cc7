"""Delivery: mail over a real SMTP server, webhooks, commands; each notice once, failures again, limits."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import sys
import time

import pytest

from colmet.commands import colmet
from colmet.notices import delivery
from tests.support.endpoint_server import Endpoint, certificate
from tests.support.notice_jobs import MAIL, NOW, OPS, failed, idle, job, set_clock, settings, write
from tests.support.smtp_server import LOGIN, SmtpServer

HOSTILE = "x\r\nBcc: evil@site.org\r\n\r\n\x1b[31m\u202e"


@pytest.fixture(scope="module")
def smtp(tmp_path_factory):
    with SmtpServer(tmp_path_factory.mktemp("smtp")) as server:
        yield server


@pytest.fixture
def server(smtp):
    smtp.clear()
    return smtp


class Site:
    """A site: its archive, its configuration, and runs of the command."""

    def __init__(self, tmp_path, monkeypatch, capsys, caplog):
        self.path, self._monkeypatch, self._capsys, self._caplog = tmp_path, monkeypatch, capsys, caplog
        self.archive, self.rules = tmp_path / "a.archive.sqlite", tmp_path / "notices.toml"

    def configure(self, **values):
        settings(self.rules, **values)

    def mail(self, server, **values):
        self.configure(**{**MAIL, "mail_server": f"127.0.0.1:{server.port}", **values})

    def jobs(self, *jobs, **options):
        write(self.archive, *jobs, **options)

    def run(self, *words, now=NOW):
        """Exit status, standard output, and standard error with the log."""
        self._caplog.clear()
        set_clock(self._monkeypatch, now)
        status = colmet.main(["notices", "--archive", str(self.archive), "--rules", str(self.rules), *words])
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err + self._caplog.text


@pytest.fixture
def site(tmp_path, monkeypatch, capsys, caplog, zone):
    return Site(tmp_path, monkeypatch, capsys, caplog)


def test_a_user_and_the_administrators_get_one_mail_each_and_only_once(site, server):
    site.jobs(idle(1, name="train"), idle(2, user="bob"), job(3))
    site.mail(server, contact="help@site.org", cluster="dahu")
    assert site.run() == (0, "notices: 4 sent\n", "")
    mails = {tuple(one.recipients): one for one in server.mails}
    assert set(mails) == {("alice@site.org",), ("bob@site.org",), (OPS,)}
    alice, ops = mails["alice@site.org",], mails[OPS,]
    assert alice.sender == "colmet@site.org"
    assert alice.mail["Subject"] == "[dahu] Job 1: idle" and ops.mail["Subject"] == "[dahu] 2 notices on jobs"
    assert alice.mail["Auto-Submitted"] == "auto-generated" and "List-Unsubscribe" not in alice.mail
    assert alice.mail["Date"].datetime.timestamp() == NOW and alice.mail["Message-ID"].endswith("@site.org>")
    assert "Job 1 (train) on 1 host, started 2026-11-25 10:00 (UTC)" in alice.text and "Almost idle" in alice.text
    assert "help@site.org" in alice.text and "Job 2" not in alice.text and "bob" not in alice.text
    assert "Job 2 of bob" in ops.text and "Job 1 (train) of alice" in ops.text and "Job 3" not in ops.text
    assert max(map(len, alice.text.splitlines())) <= 100
    assert site.run(now=NOW + 300) == (0, "", "") and len(server.mails) == 3


def test_rules_are_chosen_for_each_audience_and_users_and_queues_left_alone(site, server):
    site.jobs(idle(1), idle(2, user="robot", state="running"), idle(3, queue="interactive", state="running"))
    more = {"user_rules": ["idle", "failed-early"], "administrator_rules": ["failed-early"]}
    site.mail(server, **more, no_notices=["robot"], ignore_queues=["interactive"])
    assert site.run()[1] == "notices: 1 sent\n"
    site.jobs(failed(5, ago_s=-200))
    assert site.run(now=NOW + 300)[1] == "notices: 2 sent\n"
    assert [(one.recipients[0], one.mail["Subject"].partition(": ")[0]) for one in server.mails] == [
        ("alice@site.org", "[Colmet] Job 1"),
        ("alice@site.org", "[Colmet] Job 5"),
        (OPS, "[Colmet] Job 5"),
    ]


def test_failures_from_before_the_first_run_are_not_sent(site, server):
    site.jobs(failed(4, ago_s=3600))
    site.mail(server)
    assert site.run() == (0, "", "")
    assert site.run(now=NOW + 300) == (0, "", "")
    site.jobs(failed(5, ago_s=-200))
    assert site.run(now=NOW + 300)[1] == "notices: 2 sent\n"


def test_hostile_names_reach_neither_header_nor_address_nor_terminal(site, server):
    site.jobs(idle(1, user=HOSTILE, name=HOSTILE, state="running", queue=HOSTILE), idle(2, user="-oQ/tmp"))
    site.mail(server)
    status, out, err = site.run("--dry-run")
    assert status == 0 and "\x1b" not in out and "\u202e" not in out
    status, out, err = site.run()
    assert (status, out) == (0, "notices: 2 sent, 2 unaddressed\n")
    assert "\x1b" not in err and err.count("no address of a user") == 2
    (one,) = server.mails
    assert one.recipients == [OPS] and one.mail["Bcc"] is None and one.mail["To"] == OPS
    assert "\x1b" not in one.text and "\u202e" not in one.text and "\nBcc" not in one.text
    assert site.run(now=NOW + 300) == (0, "", "")


def test_a_server_that_is_away_is_tried_again_by_the_next_run(site, tmp_path):
    site.jobs(idle(1))
    with SmtpServer(tmp_path) as gone:
        site.mail(gone)
        gone.stop()
        for n in range(4):
            status, out, err = site.run(now=NOW + 100 * n)
            assert (status, out) == (1, "notices: 2 failed\n")
            assert err == f"colmet notices: mail server 127.0.0.1:{gone.port}: Connection refused\n"
    with SmtpServer(tmp_path) as back:
        site.mail(back)
        assert site.run(now=NOW + 400)[:2] == (0, "notices: 2 sent\n")
        assert site.run(now=NOW + 500) == (0, "", "")
        assert len(back.mails) == 2
    assert "since 2026-11-25 12:00:00 UTC: 8 failed, 2 sent" in site.run("--dry-run")[1]


def test_a_notice_of_a_job_that_ends_while_the_server_is_away_is_not_sent(site, tmp_path):
    site.jobs(idle(1))
    with SmtpServer(tmp_path) as server:
        site.mail(server, mail_server="127.0.0.1:1")
        assert site.run()[0] == 1
        site.jobs(idle(1, is_running=0))
        site.mail(server)
        assert site.run(now=NOW + 300) == (0, "", "") and server.mails == []


def test_recipients_refused_for_good_are_given_up_and_those_refused_for_now_are_not(site, server):
    site.jobs(idle(1, user="gone"), idle(2, user="later"), idle(3, user="alice"))
    site.mail(server, administrators=["gone-ops@site.org", OPS])
    status, out, err = site.run()
    assert (status, out) == (1, "notices: 1 failed, 1 refused, 4 sent\n")
    assert "550 'no such user'" in err and "450 'try again later'" in err and "addresses=gone-ops@site.org" in err
    assert sorted(one.recipients for one in server.mails) == [["alice@site.org"], [OPS]]
    status, out, _ = site.run(now=NOW + 300)
    assert (status, out) == (1, "notices: 1 failed\n") and len(server.mails) == 2


def test_a_run_waits_for_a_server_that_is_away_once_however_many_mails_there_are(site, monkeypatch):
    site.jobs(*[idle(n, user=f"user{n}") for n in range(1, 21)])
    listener = socket.create_server(("127.0.0.1", 0))  # it accepts, and says nothing
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.3)
    with listener:
        site.configure(**{**MAIL, "mail_server": f"127.0.0.1:{listener.getsockname()[1]}"})
        began = time.monotonic()
        status, out, err = site.run()
        assert (status, out) == (1, "notices: 40 failed\n") and time.monotonic() - began < 5
        assert len(err.splitlines()) == 1 and "timed out" in err


def test_no_recipient_gets_more_mails_than_a_day_allows_and_the_next_one_counts_the_others(site, server, monkeypatch):
    site.mail(server, administrator_rules=None)
    monkeypatch.setattr("colmet.notices.command.MAILS_A_DAY", 3)
    for n in range(5):
        site.jobs(idle(n + 1))
        assert site.run(now=NOW + n)[0] == 0
    assert len(server.mails) == 3
    site.jobs(idle(9, last=NOW + 86400))
    assert site.run(now=NOW + 86400)[1] == "notices: 1 sent\n"
    assert "Suppressed before: 2 notices. No more than 3 mails a day" in server.mails[-1].text
    site.jobs(idle(10, last=NOW + 86400))
    site.run(now=NOW + 86400)
    assert "Suppressed" not in server.mails[-1].text
    assert "2 suppressed" in site.run("--dry-run")[1]


def test_a_mail_has_a_bounded_number_of_notices_and_counts_the_others(site, server):
    site.jobs(*[idle(n) for n in range(1, 104)])
    site.mail(server, user_rules=None)
    site.run()
    assert server.mails[0].text.count("Almost idle") == 100 and "And 3 more notices." in server.mails[0].text


def test_jobs_of_one_user_leave_mails_to_administrators_for_those_of_others(site, server, monkeypatch):
    site.mail(server)
    monkeypatch.setattr("colmet.notices.command.MAILS_A_DAY", 4)
    for n in range(5):
        site.jobs(idle(n + 1))
        site.run(now=NOW + n)
    assert [one.recipients for one in server.mails].count([OPS]) == 2
    site.jobs(idle(9, user="bob"))
    site.run(now=NOW + 9)
    (mail,) = [one for one in server.mails[-2:] if one.recipients == [OPS]]
    assert "Job 9" in mail.text and "Suppressed before: 3 notices" in mail.text


def test_in_quiet_hours_nothing_is_sent_and_afterwards_what_still_holds(site, server, zone):
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    site.jobs(idle(1), idle(2, user="bob"))
    site.mail(server, quiet_hours="12:30-14:00")  # 13:00 there
    _status, out, _ = site.run("--dry-run")
    assert "held until 14:00" in out
    assert site.run() == (0, "notices: 2 held\n", "") and server.mails == []
    site.jobs(idle(2, user="bob", is_running=0), idle(1, last=NOW + 3700, core_s=4.0 * 10_900))
    assert site.run(now=NOW + 3700)[1] == "notices: 2 sent\n"
    assert "Job 2" not in "".join([one.text for one in server.mails])


def test_a_dry_run_prints_notices_and_recipients_and_sends_and_notes_nothing(site, server):
    site.jobs(idle(1), failed(2, ago_s=3600))
    site.mail(server)
    status, out, err = site.run("--dry-run")
    assert (status, err) == (0, "") and server.mails == [] and not (site.path / "state").exists()
    assert "job 1 of alice: idle, to administrators <ops@site.org>, user <alice@site.org>\n    Almost idle" in out
    assert "job 2 of alice: failed-early, to" in out
    site.run()
    assert "job 1" not in site.run("--dry-run")[1]


def test_a_dry_run_needs_no_configuration(site, monkeypatch, capsys):
    site.jobs(idle(1))
    monkeypatch.setattr("colmet.notices.options.DEFAULT_PATH", str(site.path / "none.toml"))
    set_clock(monkeypatch, NOW)
    assert colmet.main(["notices", "--archive", str(site.archive), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "job 1 of alice: idle, to administrators (no way to send), user (no way to send)" in out
    assert colmet.main(["notices", "--archive", str(site.archive)]) == 2
    assert "there is no such file, so notices are off" in capsys.readouterr().err


def test_a_load_by_several_jobs_is_for_the_administrators_alone(site, server):
    load = {"lustre_metadata_ops": 40_000_000}
    site.jobs(job(1, **load), job(2, user="bob", **load), host="node1")
    site.jobs(job(3, user="carol", **load), host="node2")
    site.mail(server)
    assert site.run()[0] == 0
    found = {one.recipients[0]: one.text for one in server.mails}
    assert set(found) == {OPS, "carol@site.org"}
    assert found[OPS].count("with those of other jobs") == 2 and "other jobs" not in found["carol@site.org"]


@pytest.mark.parametrize("scheme", ["starttls", "smtps"])
def test_mail_is_encrypted_verified_and_with_a_login(site, tmp_path, monkeypatch, scheme):
    cert, key = certificate(tmp_path, "mail")
    login = tmp_path / "login"
    login.write_text(":".join(LOGIN) + "\n")
    login.chmod(0o600)
    site.jobs(idle(1))
    with SmtpServer(tmp_path, (cert, key), implicit_tls=scheme == "smtps") as server:
        site.mail(server, mail_server=f"{scheme}://127.0.0.1:{server.port}", mail_login=str(login))
        status, _, err = site.run()
        assert status == 1 and "certificate verify failed" in err and server.mails == []
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        assert site.run()[:2] == (0, "notices: 2 sent\n")
        assert {one.login for one in server.mails} == {LOGIN[0]}
        assert {one.tls for one in server.mails} == {scheme == "starttls"}  # of what the client began with STARTTLS
        login.write_text("colmet:wrong\n")
        status, _, err = site.run("--test-mail", "me@site.org")
        assert status == 1 and "535" in err and "wrong" not in err
        if scheme == "starttls":  # else the server waits for a client that waits for it
            site.mail(server)
            status, _, err = site.run("--test-mail", "me@site.org")
            assert status == 1 and "STARTTLS" in err and len(server.mails) == 2


def test_a_test_mail_goes_to_its_address_alone(site, server):
    site.mail(server)
    assert site.run("--test-mail", "me@site.org") == (0, f"sent to me@site.org by 127.0.0.1:{server.port}\n", "")
    (one,) = server.mails
    assert one.recipients == ["me@site.org"] and one.mail["Subject"] == "[Colmet] test mail"
    site.configure(command=["true"])
    assert site.run("--test-mail", "me@site.org")[0] == 2


def test_addresses_from_a_file(site, server, tmp_path):
    site.jobs(idle(1), idle(2, user="bob"), idle(3, user="x;touch y"))
    book = tmp_path / "addresses"
    book.write_text("# user address\nalice: a.liddell@math.site.org\n")
    site.mail(server, administrator_rules=None, user_address=str(book))
    assert site.run()[1] == "notices: 1 sent, 2 unaddressed\n"
    assert server.mails[0].recipients == ["a.liddell@math.site.org"]


def test_a_webhook_gets_a_signed_document_and_is_asked_again_after_a_failure(site, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key of signatures\n")
    secret.chmod(0o600)
    site.jobs(idle(1, name="train"), failed(2, ago_s=-60))
    endpoint = Endpoint()
    try:
        endpoint.script = [503]
        site.configure(webhook=endpoint.url, webhook_secret=str(secret), cluster="dahu")
        status, out, err = site.run()
        assert (status, out) == (1, "notices: 2 failed\n") and "webhook: status 503" in err
        assert site.run(now=NOW + 300)[:2] == (0, "notices: 2 sent\n")
        assert site.run(now=NOW + 600) == (0, "", "")
    finally:
        endpoint.stop()
    (document,) = endpoint.documents
    assert (document["form"], document["time"], document["cluster"]) == (delivery.FORM, NOW + 300, "dahu")
    first, second = document["notices"]
    assert (first["rule"], first["job"], first["user"], first["name"]) == ("idle", 1, "alice", "train")
    assert first["to"] == ["administrators", "user"] and first["text"].startswith("Almost idle")
    assert (second["rule"], second["state"]) == ("failed-early", "failed")
    for _, headers, body in endpoint.requests:
        expected = hmac.new(b"key of signatures", body, hashlib.sha256).hexdigest()
        assert headers[delivery.SIGNATURE] == f"sha256={expected}"


def test_a_webhook_that_does_not_answer_does_not_hold_the_run_up(site, monkeypatch):
    monkeypatch.setattr(delivery, "DEADLINE_S", 0.3)
    site.jobs(idle(1))
    endpoint = Endpoint()
    endpoint.always = "silence"
    try:
        site.configure(webhook=endpoint.url)
        status, _, err = site.run()
        assert status == 1 and "webhook: no whole answer within 0.3 s" in err
    finally:
        endpoint.stop()


def test_a_command_gets_the_document_and_no_shell(site, tmp_path):
    out = tmp_path / "out"
    script = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10)); sys.exit(int(sys.argv[2]))"
    site.jobs(idle(1, name="$(touch y)"))
    site.configure(command=[sys.executable, "-c", script, str(out), "4"])
    status, printed, err = site.run()
    assert (status, printed) == (1, "notices: 1 failed\n") and "returned 4" in err
    site.configure(command=[sys.executable, "-c", script, str(out), "0"])
    assert site.run(now=NOW + 300)[:2] == (0, "notices: 1 sent\n")
    assert site.run(now=NOW + 600) == (0, "", "")
    documents = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["notices"][0]["name"] for one in documents] == ["$(touch y)"] * 2
    assert documents[0]["notices"][0]["id"] == documents[1]["notices"][0]["id"]


def test_a_run_that_is_killed_between_sending_and_noting_repeats_the_mail_once_with_the_same_id(
    site, server, monkeypatch
):
    site.jobs(idle(1))
    site.mail(server, administrator_rules=None)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("colmet.notices.state.State.mailed", killed)
        for n in range(2):
            with pytest.raises(Killed):
                site.run(now=NOW + n)
    status, out, err = site.run(now=NOW + 300)
    assert (status, out) == (0, "notices: 1 uncertain\n") and "it is unknown whether notices were sent" in err
    assert site.run(now=NOW + 600) == (0, "", "")
    assert len(server.mails) == 2 and len({one.mail["Message-ID"] for one in server.mails}) == 1
