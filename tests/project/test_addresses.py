"""No text sends a reader to a place where this source, its packages or its issues are not: they are nowhere known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("colmet", "docs", "packaging", "scripts", "dev", "benchmarks", ".github", ".gitlab", ".ci")
# the source of Colmet 0.6, cited at a commit
ALLOWED = {"docs/comparison.md": re.compile(r"https://github\.com/oar-team/colmet/blob/7f827e0/\S+")}
ADDRESS = re.compile(r"(?:(?:https?|git|ssh)://|git@)([\w.-]+)[^\s<>\"'`)]*")
# machines of examples, and this one
EXAMPLE = re.compile(r"[\w-]+|127\.0\.0\.1|(?:[\w-]+\.)*(?:example|site)\.org")
FETCHES = re.compile(
    r"git clone (?!-|https://github\.com/alumet-dev/)"
    r"|pip install (?:--?\S+ )*[\"']?colmet(?!==0\.6)\b|\bcolmet\[\w+\]"  # the index has 0.6 by this name
    r"|(?:apt(?:-get)?|dnf) install (?:-\S+ )*colmet"  # no distribution has it
)


def files():
    names = [path for path in ROOT.iterdir() if path.is_file()]
    names += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(names):
        if path.suffix not in {".pyc", ".so", ".o", ".png", ".lock"} and "vendor" not in path.parts:
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8", errors="replace")


def wrong(path, text):
    """What a text has of addresses of the project, and of ways to fetch it by name."""
    allowed = ALLOWED.get(str(path), re.compile(r"(?!)"))
    found = [
        address[0]
        for address in ADDRESS.finditer(text)
        if "colmet" in address[0].lower() and not EXAMPLE.fullmatch(address[1]) and not allowed.fullmatch(address[0])
    ]
    return [*found, *FETCHES.findall(text)]


@pytest.mark.slow
def test_no_text_names_an_address_where_the_project_is_not():
    texts = list(files())
    assert len(texts) > 600
    assert [(str(path), found) for path, text in texts if (found := wrong(path, text))] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/tutorial.md", "git clone ADDRESS"),
        ("packaging/rpm/colmet.spec", "URL: https://github.com/oar-team/colmet"),
        ("pyproject.toml", 'Homepage = "https://colmet.readthedocs.io/"'),
        ("SECURITY.md", "<https://gitlab.com/colmet/colmet/-/issues>"),
        ("docs/comparison.md", "https://github.com/oar-team/colmet/issues"),
        ("docs/install.md", "pip install -U colmet"),
        ("docs/install.md", "apt-get install -y colmet-node"),
    ],
)
def test_an_address_or_a_name_to_fetch_is_found(path, text):
    assert wrong(Path(path), text)
