"""Tests say what they need of the place where they run; what it does not allow is skipped, and listed at the end."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from tests.support import place

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in (ROOT / "tests").rglob("*.py") if "beds" not in path.parts]
# What a place may refuse: the fixture that a test has for it, and the words by which it is seen.
REFUSALS = {
    "other_user": r"os\.set(re|res)?[ug]id\(|os\.sete[ug]id\(|\"setpriv\"|\"runuser\"",
    "other_owner": r"os\.[fl]?chown\(",
    "mounts": r"\"unshare\"|unshare (-m|--mount)|\"mount\", \"-",
}
STRONGER = ("root", "cgroups")
KNOWING = re.compile(r"skip_refused\(|_refusal\(|cannot_run\(|usefixtures\(\"(root|cgroups|mounts|other_\w+)\"")


def functions_of(source):
    """Yield each outermost function or method: its source with decorators, and its arguments."""
    lines = source.splitlines()

    def walk(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                start = min([child.lineno, *[part.lineno for part in child.decorator_list]])
                text = "\n".join(lines[start - 1 : child.end_lineno])
                yield child.name, text, {argument.arg for argument in child.args.args}
            else:
                yield from walk(child)

    yield from walk(ast.parse(source))


def test_each_test_that_a_place_may_refuse_says_what_it_needs():
    silent = []
    words = re.compile("|".join(REFUSALS.values()))
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        for name, text, arguments in functions_of(source) if words.search(source) else ():
            if not name.startswith("test_") or KNOWING.search(text):
                continue
            for fixture, pattern in REFUSALS.items():
                if re.search(pattern, text) and not arguments & {fixture, *STRONGER}:
                    silent.append(f"{path.relative_to(ROOT)}: {name} needs {fixture}")
    assert silent == []


def test_no_test_takes_a_number_of_a_user_for_a_right():
    """Root of a container has number 0, and few rights."""
    guess = re.compile(r"(?<!monkeypatch\.setattr\()os\.get(e?)uid\(\) (==|!=) 0|not os\.gete?uid\(\)|skipif\(os\.get")
    assert [path.name for path in SOURCES if path != Path(__file__) and guess.search(path.read_text("utf-8"))] == []


def test_a_refusal_skips_and_fails_only_where_ci_has_all_rights(monkeypatch):
    for variables, outcome in (
        ({}, pytest.skip.Exception),
        ({"CI": "true"}, pytest.fail.Exception),
        ({"CI": "true", "COLMET_PLACE": "container"}, pytest.skip.Exception),
    ):
        for name in ("CI", "COLMET_PLACE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(outcome, match="no mount is allowed"):
            place.require("no mount is allowed")
    place.require("")


def test_a_missing_program_fails_in_ci_wherever_it_runs(monkeypatch):
    monkeypatch.setenv("COLMET_PLACE", "container")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such-a-program"):
        place.require_programs("such-a-program")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no such-a-program"):
        place.require_programs("such-a-program")


def test_rights_are_found_by_trying():
    """What the system refuses a child process is refused here."""
    if place.owner_refusal():
        with pytest.raises(OSError, match=r"permitted|argument"):
            os.fchown(os.memfd_create("colmet-test"), 12345, 12345)
    if place.user_refusal():
        assert place.machine_refusal()
