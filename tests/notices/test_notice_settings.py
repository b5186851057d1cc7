"""The configuration of notices: what is refused, and with which words; addresses; quiet hours."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from colmet.common.errors import ConfigError
from colmet.notices.delivery import Calendar, hours
from colmet.notices.options import NoticeSettings, build_parser, by_pattern, is_address
from colmet.notices.rules import RULES
from tests.support.notice_jobs import MAIL, settings

ROOT = Path(__file__).parents[2]
NONE = {"user_rules": None, "administrator_rules": None}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (NONE, "notices are off: neither user-rules nor administrator-rules names one of idle, gpu-idle"),
        ({}, "no way to send notices: give mail-server, webhook or command"),
        ({"user_rules": ["idel"]}, "user-rules: invalid choice: 'idel' (choose from"),
        ({**MAIL, "mail_from": None}, "mail-server requires mail-from"),
        ({**MAIL, "mail_from": "a@b.org\nBcc: c@d.org"}, "is not an address"),
        ({**MAIL, "administrators": ["Ops <ops@site.org>"]}, "is not an address"),
        ({**MAIL, "administrators": None}, "administrator-rules has no effect"),
        ({**MAIL, "user_address": None}, "user-rules has no effect"),
        ({**MAIL, "user_address": "site.org"}, "is not a pattern such as %u@site.org"),
        ({**MAIL, "user_address": "/nowhere"}, "user-address /nowhere: No such file"),
        ({**MAIL, "mail_login": "{open}"}, "others can read it"),
        ({**MAIL, "mail_server": "smtp://mail.site.org", "mail_login": "{login}"}, "shows mail-login"),
        ({**MAIL, "mail_login": "{secret}"}, "not user:password"),
        ({**MAIL, "mail_server": "smtp.site.org 25"}, "is not a server such as smtp.site.org"),
        ({**MAIL, "mail_server": "http://smtp.site.org"}, "is not a server such as smtp.site.org"),
        ({**MAIL, "mail_server": "smtp.site.org:99999"}, "is not a server such as smtp.site.org"),
        ({"webhook": "ftp://site.org"}, "is not an address such as https"),
        ({"webhook": "http://site.org/x"}, "webhook without https"),
        ({"webhook": "https://site.org/x", "webhook_secret": "{open}"}, "webhook-secret"),
        ({"command": ["true"], "webhook_secret": "{secret}"}, "webhook-secret has no effect"),
        ({"command": ["true"], "quiet_hours": "22-7"}, "are not hours such as"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_a_remedy(tmp_path, values, text):
    files = {}
    for name, content, mode in (("open", "a:b", 0o644), ("login", "a:b", 0o600), ("secret", "x", 0o640)):
        path = tmp_path / name
        path.write_text(content + "\n")
        path.chmod(mode)
        files[name] = str(path)
    values = {name: value.format(**files) if isinstance(value, str) else value for name, value in values.items()}
    path = settings(tmp_path / "notices.toml", **values)
    with pytest.raises(ConfigError, match=re.escape(text)) as refused:
        NoticeSettings(path)
    assert str(tmp_path) in str(refused.value) or "/nowhere" in str(refused.value)


def test_the_server_is_encrypted_unless_it_is_this_machine(tmp_path):
    for given, host, scheme, port in (
        ("smtp.site.org", "smtp.site.org", "starttls", 587),
        ("localhost", "localhost", "smtp", 25),
        ("::1", "::1", "smtp", 25),
        ("[::1]:2525", "::1", "smtp", 2525),
        ("smtps://smtp.site.org", "smtp.site.org", "smtps", 465),
        ("smtp://relay:26", "relay", "smtp", 26),
    ):
        found = NoticeSettings(settings(tmp_path / "n.toml", **{**MAIL, "mail_server": given})).server
        assert (found.host, found.scheme, found.port) == (host, scheme, port)


def test_the_packaged_file_is_off_and_its_proposals_can_be_used(tmp_path):
    text = (ROOT / "packaging/etc/notices.toml").read_text()
    path = tmp_path / "notices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="notices are off"):
        NoticeSettings(str(path))
    secret = tmp_path / "secret"
    secret.write_text("a:b\n")
    secret.chmod(0o600)
    proposed = re.sub(r"^#(?=[a-z-]+ = )", "", text, flags=re.M).replace("/etc/colmet/notices.", f"{tmp_path}/n.")
    (tmp_path / "n.login").write_text("a:b\n")
    (tmp_path / "n.secret").write_text("key\n")
    for name in ("n.login", "n.secret"):
        (tmp_path / name).chmod(0o640)
    path.write_text(proposed)
    found = NoticeSettings(str(path))
    assert found.user_rules and found.webhook_secret == b"key" and found.server.password == "b"


def test_the_page_has_every_option_and_every_rule_with_its_condition():
    text = (ROOT / "docs/tools/notices.md").read_text()
    names = {name[2:] for action in build_parser().actions for name in action.option_strings if name[:2] == "--"}
    assert names - {"help", "help-all"} <= set(re.findall(r"`([a-z-]+)`", text))
    for rule in RULES.values():
        assert f"| `{rule.name}` | {rule.because} |" in text


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("alice@site.org", True),
        *((text, False) for text in ("alice", "alice@", "@site.org", "-f@site.org", "a b@site.org")),
        ("alice@site.org,bob@site.org", False),
        ("alice@site.org\n", False),
        ("al\u0131ce@site.org", False),
        ('"a"@site.org', False),
        ("a@b.org>", False),
    ],
)
def test_addresses_have_no_room_for_tricks(text, is_good):
    assert is_address(text) is is_good


@pytest.mark.parametrize("name", ["", "a b", "-x", "../x", "a@b", "x\n", "a%u", "\u00e9", "x" * 65, "%s"])
def test_a_hostile_user_has_no_address(name):
    assert by_pattern("%u@site.org")(name) is None


def test_quiet_hours_may_cross_midnight_and_follow_summer_time(zone):
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    night = hours("22:00-07:00")
    winter, summer = 1_795_564_800, 1_783_036_800  # 2026-11-25 and 2026-07-03, 00:00 UTC
    for midnight, inside in ((winter, range(21, 30)), (summer, range(20, 29))):
        for hour in range(6, 40):
            expected = hour in inside or hour - 24 in inside
            assert night.is_quiet(midnight + hour * 3600) is expected, hour
    assert night.quiet_until() == "07:00" and night.day(winter + 23.5 * 3600) == "2026-11-26"
    zone("UTC")
    day = hours("8:30 - 12:00")
    assert day.text(0) == "1970-01-01 00:00 (UTC)"
    assert [day.is_quiet(winter + 60 * m) for m in (509, 510, 719, 720)] == [False, True, True, False]
    assert not Calendar().is_quiet(winter)


@pytest.mark.parametrize("text", ["", "22:00", "24:00-01:00", "22:00-22:00", "22:61-07:00", "\u0662\u0662:00-07:00"])
def test_other_hours_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        hours(text)
