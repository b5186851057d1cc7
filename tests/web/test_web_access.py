"""Logins of the JSON interface: the file of users, passwords, tokens, groups, and what guessing costs."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import time
from types import SimpleNamespace

import pytest

from colmet.common.errors import ConfigError
from colmet.web import access as access_module
from colmet.web.access import OF_ADDRESS, SESSION_S, SESSIONS_OF_USER, Access, NotNamed, Unauthorized, Visitor
from colmet.web.credentials import Credential, Password, Token, make_password, make_token, parse_line, token_digest
from colmet.web.workers import Busy
from tests.support.waiting import Clock
from tests.support.web_client import basic, bearer
from tests.support.web_users import cheap

HERE = "192.0.2.1"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "users"
    lines = [Credential("alice", cheap("secret")), Credential("root", cheap("toor"), frozenset({"admin"}))]
    path.write_text("".join(f"{line.text()}\n" for line in lines))
    path.chmod(0o600)
    return path


def change(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else line.text()}\n" for line in lines))


def nobody_is_member(user, group):
    return False


@pytest.fixture
def access(file, clock):
    return Access(str(file), clock=clock, is_member=nobody_is_member)


def visitor(access, *headers, address=HERE, session=""):
    return asyncio.run(access.visitor([value for _, value in headers], address, session))


def test_a_user_with_the_right_password_is_let_in_and_a_member_of_the_group_is_an_administrator(access):
    assert visitor(access, basic("alice", "secret")) == Visitor("alice", False)
    assert visitor(access, basic("root", "toor")) == Visitor("root", True)
    assert visitor(access, basic("root", "toor")).only is None


def test_a_member_of_the_group_of_this_machine_is_an_administrator(file, clock):
    asked = []

    def is_member(user, group):
        asked.append((user, group))
        return user == "alice"

    access = Access(str(file), "staff", clock=clock, is_member=is_member)
    assert visitor(access, basic("alice", "secret")).is_admin
    assert not visitor(access, basic("root", "toor")).is_admin  # admin is not the name of the group
    assert visitor(access, basic("alice", "secret")).is_admin
    assert asked == [("alice", "staff"), ("root", "staff")]
    clock.now += 61
    visitor(access, basic("alice", "secret"))
    assert len(asked) == 3


def test_who_is_in_no_known_group_is_no_administrator(file, clock):
    def is_member(user, group):
        raise OSError("the directory is away")

    access = Access(str(file), clock=clock, is_member=is_member)
    assert visitor(access, basic("alice", "secret")) == Visitor("alice", False)
    assert access.stats.values()["groups_failures"] == 1


def test_the_groups_of_this_machine_are_read():
    me = pwd.getpwuid(os.geteuid())
    assert access_module.member_of(me.pw_name, grp.getgrgid(me.pw_gid).gr_name)
    assert not access_module.member_of(me.pw_name, "no-such-group-of-colmet")
    assert not access_module.member_of("no-such-user-of-colmet", grp.getgrgid(me.pw_gid).gr_name)


@pytest.mark.parametrize(
    "headers",
    [
        *([], [basic("alice", "wrong")], [basic("nobody", "secret")], [basic("alice", "")], [basic("", "secret")]),
        *([bearer("")], [bearer("colmet_none")], [bearer("x" * 2000)], [basic("alice", "x" * 2000)]),
        [basic("alice", "secret"), basic("root", "toor")],
        # gICA is no UTF-8
        *[
            [("Authorization", text)]
            for text in (
                *("Basic alice:secret", "Basic !!!!", "Basic gICA", "Basic", "", "Negotiate YII="),
                *("Digest username=alice", "Basic " + "A" * 10_000, "Basic \xff\xfe"),
            )
        ],
    ],
)
def test_nobody_else_is_let_in(access, headers):
    with pytest.raises(Unauthorized):
        visitor(access, *headers)


def test_a_token_is_good_as_bearer_and_as_the_password_of_its_name(file, clock):
    token = make_token()
    change(file, Credential("bob", Token(token_digest(token)), frozenset({"admin"})))
    access = Access(str(file), clock=clock, is_member=nobody_is_member)
    assert visitor(access, bearer(token)) == Visitor("bob", True)
    assert visitor(access, basic("bob", token)) == Visitor("bob", True)
    assert access.stats.values()["passwords_checked"] == 0
    with pytest.raises(Unauthorized):
        visitor(access, basic("alice", token))
    with pytest.raises(Unauthorized):
        visitor(access, bearer(token + "x"))


def test_a_token_ends_after_its_last_day(file, clock):
    token = make_token()
    change(file, f"bob:sha256${token_digest(token).hex()}$cron$2026-03-01")
    now = Clock()
    access = Access(str(file), clock=clock, now=now, is_member=nobody_is_member)
    now.now = 1772409599.0  # the last second of that day
    assert visitor(access, bearer(token)).user == "bob"
    now.now += 1
    with pytest.raises(Unauthorized):
        visitor(access, bearer(token))


def test_a_checked_password_is_not_checked_again_for_a_while(access, clock):
    for _ in range(5):
        visitor(access, basic("alice", "secret"))
    assert access.stats.values()["passwords_checked"] == 1
    clock.now += access_module.KEPT_S + 1
    visitor(access, basic("alice", "secret"))
    assert access.stats.values()["passwords_checked"] == 2


def test_what_is_remembered_is_bounded_and_holds_no_password(access, monkeypatch):
    monkeypatch.setattr(access_module, "KEPT", 1)
    visitor(access, basic("alice", "secret"))
    visitor(access, basic("root", "toor"))
    assert len(access._known) == 1
    assert b"toor" not in b"".join(access._known)


def test_a_changed_file_is_read_again_and_a_removed_user_is_out(access, file, clock):
    visitor(access, basic("alice", "secret"))
    change(file, Credential("bob", cheap("builder")))
    clock.now += 0.5
    assert visitor(access, basic("alice", "secret")).user == "alice"  # looked at a moment ago
    clock.now += 1
    with pytest.raises(Unauthorized):
        visitor(access, basic("alice", "secret"))
    assert visitor(access, basic("bob", "builder")).user == "bob"
    assert access.stats.values()["users_reloads"] == 1


@pytest.mark.parametrize("spoil", ["line", "gone", "writable", "binary"])
def test_a_file_that_became_unusable_leaves_the_users_of_before(access, file, clock, caplog, spoil):
    if spoil == "line":
        change(file, "alice:plain")
    elif spoil == "gone":
        file.unlink()
    elif spoil == "writable":
        file.chmod(0o666)
    else:
        file.write_bytes(b"\xff\xfe\x00")
    for _ in range(3):
        clock.now += 2
        assert visitor(access, basic("alice", "secret")).user == "alice"
    assert access.stats.values()["users_failures"] == 1  # logged once, not at every look
    assert "users not read again" in caplog.text
    change(file, Credential("carol", cheap("x")))
    file.chmod(0o600)
    clock.now += 2
    assert visitor(access, basic("carol", "x")).user == "carol", "mended"


SHA, SALTED, HASH = "sha256$" + "0" * 64, "00" * 16, "00" * 32


@pytest.mark.parametrize(
    "text",
    [
        *("alice", "alice:", f":{SHA}", "alice:secret", "alice:$2y$10$abcdefghijklmnopqrstuv", "alice:sha256$00"),
        *(f"alice:{SHA}$a b", f"alice:{SHA}$a$tomorrow", f"alice:{SHA}$a$2026-01-01$more", f"alice:{SHA}:a b"),
        *(f"alice:{SHA}:a:b", f"al\x00ice:{SHA}", f"alice:scrypt$3$1$1${SALTED}${HASH}"),
        *(f"alice:scrypt$1048576$8$1${SALTED}${HASH}", f"alice:scrypt$131072$16$1${SALTED}${HASH}"),
        *(f"alice:scrypt$16384$8$99999999999${SALTED}${HASH}", f"alice:scrypt$16384$8$1$zz${HASH}"),
        f"alice:scrypt$16384$8$1${SALTED}$00",
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number(file, text):
    change(file, "# a comment", "", text)
    with pytest.raises(ConfigError, match="users:3: "):
        Access(str(file))


def test_a_second_password_of_a_name_and_a_token_twice_are_refused(file):
    change(file, Credential("alice", cheap("a")), Credential("alice", cheap("b")))
    with pytest.raises(ConfigError, match="has a password already"):
        Access(str(file))
    change(file, Credential("alice", Token(bytes(32))), Credential("bob", Token(bytes(32))))
    with pytest.raises(ConfigError, match="another line has this token"):
        Access(str(file))


def test_lines_are_read_as_they_are_written():
    for line in (
        Credential("alice", cheap("x"), frozenset({"a", "b"})),
        Credential("Zoë B", Token(bytes(32), "cron.d", None)),
        Credential("x", Token(bytes(32)), frozenset({"admin"})),
    ):
        assert parse_line(line.text()) == line
    line = parse_line("x:sha256$" + "0" * 64 + "$$2026-01-31")
    assert line.secret.until.isoformat() == "2026-01-31" and parse_line(line.text()) == line


def test_a_file_that_everybody_may_write_or_that_is_a_strangers_is_refused(file, tmp_path, monkeypatch):
    file.chmod(0o602)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        Access(str(file))
    file.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(file).st_uid + 1)
    if os.stat(file).st_uid != 0:
        with pytest.raises(ConfigError, match="belongs to user"):
            Access(str(file))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        Access(str(tmp_path / "pipe"))
    with pytest.raises(ConfigError):
        Access(str(tmp_path))
    with pytest.raises(ConfigError, match="No such file"):
        Access(str(tmp_path / "none"))


def test_a_file_that_all_can_read_is_warned_of(file, caplog):
    file.chmod(0o644)
    Access(str(file))
    assert "all on this machine can read" in caplog.text


def test_a_name_that_is_not_there_costs_as_much_as_a_wrong_password(file, clock, monkeypatch):
    checked = []

    def is_right(self, given):
        checked.append((self.n, self.r, self.p))
        return False

    change(file, Credential("alice", make_password("secret")))
    access = Access(str(file), clock=clock, is_member=nobody_is_member)
    monkeypatch.setattr(Password, "is_right", is_right)
    for name in ("alice", "nobody"):
        with pytest.raises(Unauthorized):
            visitor(access, basic(name, "wrong"))
    assert checked[0] == checked[1]


def test_a_real_password_is_distinguished_from_a_wrong_one():
    password = make_password("correct horse")
    assert password.is_right("correct horse") and not password.is_right("correct house")
    assert parse_line(Credential("a", password).text()).secret == password
    for wrong in ("", "x" * 1025):
        with pytest.raises(ValueError, match="characters"):
            make_password(wrong)


# -- many wrong passwords --


@pytest.fixture
def slow(monkeypatch):
    """The passwords that were checked, each of which needs some time."""
    checked = []

    def is_right(self, given):
        checked.append(given)
        time.sleep(0.01)
        return given in ("secret", "toor")

    monkeypatch.setattr(Password, "is_right", is_right)
    return checked


@pytest.mark.parametrize(("name", "address"), [("root", HERE), ("alice", HERE), ("root", "198.51.100.7")])
def test_a_right_password_is_let_in_soon_beside_12_clients_with_wrong_ones(access, slow, name, address):
    """Each of them tries again at once, with ever new names, or with that of the user."""

    async def guess(n):
        for k in range(1000):
            with pytest.raises(Unauthorized):
                await access.visitor([basic("alice" if n % 2 else f"u{n}-{k}", f"wrong {n} {k}")[1]], HERE)

    async def attack():
        guesses = [asyncio.ensure_future(guess(n)) for n in range(12)]
        while len(slow) < 20:
            await asyncio.sleep(0.001)
        before, right = len(slow), "toor" if name == "root" else "secret"
        found = await access.visitor([basic(name, right)[1]], address)
        needed = slow[before:].index(right) + 1
        before = len(slow)
        known = await access.visitor([basic(name, right)[1]], address)
        after = len(slow) - before
        for one in guesses:
            one.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)
        return found, needed, known, after

    found, needed, known, after = asyncio.run(attack())
    assert found.user == name == known.user
    assert needed <= 14, "each of the others had a turn at most"
    assert after <= 1, "a known password waits for nobody"


def test_one_address_cannot_take_all_places_that_wait(access, slow):
    async def attack():
        tries = [asyncio.ensure_future(access.visitor([basic(f"u{n}", "x")[1]], HERE)) for n in range(300)]
        await asyncio.sleep(0)
        found = await access.visitor([basic("alice", "secret")[1]], "198.51.100.7")
        return found, await asyncio.gather(*tries, return_exceptions=True)

    found, results = asyncio.run(attack())
    assert found.user == "alice"
    checked = sum(isinstance(one, Unauthorized) for one in results)
    assert OF_ADDRESS <= checked < OF_ADDRESS + 20, "some end meanwhile"
    assert sum(isinstance(one, Busy) for one in results) == 300 - checked


def test_what_a_program_asks_at_once_needs_one_check(access, slow):
    async def ask(password):
        tries = [asyncio.ensure_future(access.visitor([basic("alice", password)[1]], HERE)) for _ in range(20)]
        return await asyncio.gather(*tries)

    assert {found.user for found in asyncio.run(ask("secret"))} == {"alice"}
    assert slow == ["secret"]


def test_a_password_that_is_checked_while_its_user_is_removed_does_not_let_in(access, file, clock, slow):
    async def race():
        first = asyncio.ensure_future(access.visitor([basic("alice", "secret")[1]], HERE))
        await asyncio.sleep(0)
        access._users = access._users._replace(names=0)  # as the file read again
        return await first

    with pytest.raises(Busy):
        asyncio.run(race())
    assert not access._known


# -- what stands for a password --


def issued(access, *header):
    return asyncio.run(access.login_token([one[1] for one in header], HERE))


def session_of(access, name, password):
    return asyncio.run(access.log_in(name, password, HERE))[0]


def test_a_token_stands_for_the_password_until_its_end(access):
    before = int(access.now())
    token, until = issued(access, basic("alice", "secret"))
    assert before <= until - access_module.LOGIN_S <= access.now()
    assert visitor(access, bearer(token)) == Visitor("alice", False)
    assert visitor(access, basic("alice", token)) == Visitor("alice", False)
    for header in (basic("root", token), bearer(token[:-1]), bearer(token + "x")):
        with pytest.raises(Unauthorized):
            visitor(access, header)
    access.now = lambda: until
    with pytest.raises(Unauthorized):
        visitor(access, bearer(token))


def test_a_session_ends_with_its_sign_out(access):
    session, other = session_of(access, "alice", "secret"), session_of(access, "alice", "secret")
    assert visitor(access, session=session).user == "alice"
    access.end(session)
    access.end(session)
    with pytest.raises(Unauthorized):
        visitor(access, session=session)
    assert visitor(access, session=other).user == "alice"


def test_a_session_ends_with_its_password_and_with_the_process(access, clock, file):
    session = session_of(access, "alice", "secret")
    with pytest.raises(Unauthorized):
        visitor(Access(str(file)), session=session)
    change(file, Credential("alice", make_password("another")))
    clock.now += 2
    with pytest.raises(Unauthorized):
        visitor(access, session=session)


def test_a_header_counts_before_a_session(access):
    session = session_of(access, "root", "toor")
    assert visitor(access, basic("alice", "secret"), session=session).user == "alice"
    with pytest.raises(Unauthorized):
        visitor(access, basic("alice", "wrong"), session=session)


def test_the_oldest_sessions_of_a_user_make_room(access, monkeypatch):
    monkeypatch.setattr(access_module, "SESSIONS_OF_USER", 2)
    roots = session_of(access, "root", "toor")
    sessions = [session_of(access, "alice", "secret") for _ in range(3)]
    with pytest.raises(Unauthorized):
        visitor(access, session=sessions[0])
    assert [visitor(access, session=one).user for one in (*sessions[1:], roots)] == ["alice", "alice", "root"]
    assert not [key for key in access._sessions if key in "".join(sessions).encode()], "their hashes are kept"


@pytest.mark.parametrize("as_proxy", [False, True])
def test_a_name_that_is_the_number_of_another_is_refused(file, clock, monkeypatch, as_proxy):
    """Nodes that do not know a name report the number: its jobs are those of the user with this number."""
    named = {1000: "alice", 1001: "1001"}
    monkeypatch.setattr(access_module.pwd, "getpwuid", lambda number: SimpleNamespace(pw_name=named[number]))
    names = ("1000", "01000", "1001", "1002", "9" * 30, "alice")
    change(file, *[Credential(name, cheap("x")) for name in names], Credential("0", cheap("x"), frozenset({"admin"})))
    options = {"path": None, "user_header": "X-User"} if as_proxy else {"path": str(file)}
    access = Access(**options, clock=clock, is_member=nobody_is_member)

    def asked(name):
        return visitor(access, ("X-User", name) if as_proxy else basic(name, "x"))

    for name in names[:2]:
        with pytest.raises(NotNamed, match="number of another user"):
            asked(name)
    assert [asked(name).user for name in names[2:]] == [*names[2:]]
    assert as_proxy or asked("0").is_admin


def test_sessions_of_others_that_are_over_end_no_token(users):
    now = [1_800_000_000.0]
    access = Access(users, is_member=lambda *_: False, now=lambda: now[0])
    token, _ = asyncio.run(access.login_token([basic("alice", "a")[1]], "192.0.2.1"))
    for _ in range(SESSIONS_OF_USER):
        asyncio.run(access.log_in("bob", "b", "192.0.2.2"))
    now[0] += SESSION_S + 1
    asyncio.run(access.log_in("alice", "a", "192.0.2.3"))
    assert asyncio.run(access.visitor([bearer(token)[1]], "192.0.2.1")).user == "alice"
    assert len(access._sessions) == 2
