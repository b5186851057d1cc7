"""What `make release` checks before it makes a tag."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.place import require_programs

ROOT = Path(__file__).parents[2]
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def tree(tmp_path):
    """A repository in which version 1.2.3 can be released."""
    require_programs("git")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "colmet").mkdir()
    shutil.copy(ROOT / "scripts/release.sh", tmp_path / "scripts")
    (tmp_path / "colmet/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n")
    run(tmp_path, "git", "init", "-q", ".")
    commit(tmp_path)
    return tmp_path


def run(tree, *command):
    return subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


def commit(tree):
    run(tree, "git", "add", "-A")
    assert run(tree, *GIT, "commit", "-qm", "x").returncode == 0


def release(tree):
    done = run(tree, "scripts/release.sh")
    return done.returncode, done.stdout


def test_a_dry_run_says_what_a_release_does_and_does_nothing(tree):
    status, text = release(tree)
    assert status == 0 and "git tag -a v1.2.3" in text and text.count("scripts/build-") == 3
    assert "make release ARGS=--do" in text
    assert run(tree, "git", "tag").stdout == "" and not (tree / "dist").exists()
    for script in ("build-sdist.sh", "build-wheel.sh", "build-debs.sh"):
        assert f"scripts/{script} dist" in text and (ROOT / "scripts" / script).exists()


@pytest.mark.parametrize(
    ("change", "text", "problem"),
    [
        ("colmet/__init__.py", '__version__ = "1.2.3.dev0"\n', "1.2.3.dev0 is no version to release"),
        ("colmet/__init__.py", '__version__ = "1.2.4"\n', 'no heading "## [1.2.4] - YYYY-MM-DD"'),
        ("CHANGELOG.md", "## [1.2.3]\n", 'no heading "## [1.2.3] - YYYY-MM-DD"'),
    ],
)
def test_a_version_without_its_changelog_is_not_released(tree, change, text, problem):
    (tree / change).write_text(text)
    commit(tree)
    status, said = release(tree)
    assert status == 1 and problem in said


def test_a_tree_with_changes_and_a_version_with_a_tag_are_not_released(tree):
    run(tree, *GIT, "tag", "-a", "v1.2.3", "-m", "x")
    (tree / "new").touch()
    status, text = release(tree)
    assert status == 1 and "not committed" in text and "there is a tag v1.2.3 already" in text


def test_one_command_prepares_a_version_and_it_can_be_released(tree):
    (tree / "docs").mkdir()
    (tree / "docs/a.md").write_text("colmet-node 1.2.3.dev0, and 11.2.3.dev0\n")
    (tree / "colmet/__init__.py").write_text('__version__ = "1.2.3.dev0"\n')
    (tree / "CHANGELOG.md").write_text("## [Unreleased]\n\n- a line\n\n## [1.2.2] - 2026-01-01\n")
    (tree / "python").write_text("#!/bin/sh\n")  # instead of `python -m dev.stable`
    (tree / "python").chmod(0o755)
    commit(tree)
    for name in ("user.name", "user.email"):
        run(tree, "git", "config", name, "a@example.org")
    done = run(tree, "scripts/release.sh", "--prepare", "1.2.3", "./python")
    assert done.returncode == 0, done.stdout
    assert (tree / "colmet/__init__.py").read_text() == '__version__ = "1.2.3"\n'
    assert (tree / "docs/a.md").read_text() == "colmet-node 1.2.3, and 11.2.3.dev0\n"
    changelog = (tree / "CHANGELOG.md").read_text()
    assert changelog.startswith("## [Unreleased]\n\n## [1.2.3] - 20") and changelog.count("[Unreleased]") == 1
    assert changelog.endswith("\n\n- a line\n\n## [1.2.2] - 2026-01-01\n")
    assert run(tree, "git", "log", "-1", "--format=%s").stdout == "version 1.2.3\n"
    assert release(tree)[0] == 0 and run(tree, "git", "tag").stdout == ""


def test_the_libraries_are_built_alike_in_any_folder(tmp_path):
    """Packages have the same bytes wherever they are built; `make release ARGS=--verify` builds all of them twice."""
    require_programs("make", "cc")
    for source in sorted((ROOT / "colmet/node/backends").glob("lib_*")):
        built = []
        for folder in ("a", "another folder"):
            copy = tmp_path / folder / source.name
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.so"))
            assert run(copy, "make").returncode == 0
            built.append((copy / f"{source.name}.so").read_bytes())
        assert built[0] == built[1], source.name
