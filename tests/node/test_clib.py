from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from colmet.common.errors import BackendUnavailable
from colmet.node.system import clib
from tests.support.place import cannot_run, require_programs

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "LIB_MADE_UP_PATH"
ABI = 7
AGENT = ("node", "common")  # packages


def build(folder, text):
    """A library lib_made_up.so of this source, in this folder."""
    require_programs("gcc")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "source.c", folder / "lib_made_up.so"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def source(abi, mark):
    return f"int lib_made_up_abi(void) {{ return {abi}; }} int mark(void) {{ return {mark}; }}"


@pytest.fixture
def backends(tmp_path, monkeypatch):
    """Where the built library is looked for: empty."""
    monkeypatch.setattr(clib, "HERE", str(tmp_path / "backends"))
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "backends/lib_made_up").mkdir(parents=True)
    return tmp_path / "backends"


def load():
    return clib.load("lib_made_up", ABI, VARIABLE)


def test_the_built_library_is_taken(backends):
    build(backends / "lib_made_up", source(ABI, 1))
    assert load().mark() == 1


def test_the_environment_names_another_one_by_file_or_folder(backends, tmp_path, monkeypatch, caplog):
    build(backends / "lib_made_up", source(ABI, 1))
    library = build(tmp_path / "site", source(ABI, 2))
    for named in (library, library.parent):
        monkeypatch.setenv(VARIABLE, str(named))
        assert load().mark() == 2
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (source(ABI + 1, 3), f"speaks ABI {ABI + 1}, and this Colmet speaks {ABI}"),
        ("int init_counters(void) { return 0; }", "is not the lib_made_up of this Colmet"),
        (None, "invalid ELF header|file too short"),
        ("", "is not the lib_made_up of this Colmet"),
    ],
)
def test_one_that_is_not_of_this_colmet_is_refused_and_the_built_one_taken(
    backends, tmp_path, monkeypatch, caplog, text, why
):
    build(backends / "lib_made_up", source(ABI, 1))
    if text is None:
        (tmp_path / "lib_made_up.so").write_text("not a library")
    else:
        build(tmp_path, text)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert load().mark() == 1
    (record,) = caplog.records
    assert record.levelname == "WARNING" and f"{VARIABLE}={tmp_path} is refused" in record.getMessage()
    assert re.search(why, record.getMessage())


def test_a_missing_one_says_how_to_build_it(backends, tmp_path, monkeypatch):
    with pytest.raises(BackendUnavailable, match=f"`make -C {backends}/lib_made_up` builds it .it needs gcc"):
        load()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(BackendUnavailable, match="builds it"):
        load()


def test_a_built_one_of_another_colmet_says_so(backends):
    build(backends / "lib_made_up", source(ABI - 1, 1))
    with pytest.raises(BackendUnavailable, match=f"speaks ABI {ABI - 1}.*builds it"):
        load()


# -- the installed package --


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A clean copy of the source of the agent, which has the libraries, without anything that was built in it."""
    top = tmp_path_factory.mktemp("source")
    others = [path.name for path in (ROOT / "colmet").iterdir() if path.is_dir() and path.name not in AGENT]
    leave = shutil.ignore_patterns("*.so", "test_sanitized", "test_plain", "__pycache__", *others)
    shutil.copytree(ROOT / "colmet", top / "colmet", ignore=leave)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"):
        shutil.copy(ROOT / name, top)
    for path in ROOT.glob("requirements*.txt"):
        shutil.copy(path, top)
    return top


def pip(copy, *arguments, **environment):
    command = [sys.executable, "-m", "pip", "-v", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(
        command,
        cwd=copy,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    if "No module named pip" in done.stdout:
        cannot_run("no pip")
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.slow
def test_an_installed_package_has_the_libraries_and_finds_them(copy, tmp_path):
    pip(copy, "wheel", "--no-deps", "-w", str(tmp_path / "wheels"), ".")
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert "linux" in wheel.name and not wheel.name.endswith("-any.whl")
    pip(copy, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))
    made = [path.parent.name for path in (ROOT / "colmet/node/backends").glob("lib_*/Makefile")]
    assert made
    for name in made:
        folder = tmp_path / "site/colmet/node/backends" / name
        assert (folder / f"{name}.so").is_file() and (folder / "Makefile").is_file()
    said = subprocess.run(
        [sys.executable, "-c", "from colmet.node.system import clib; print(clib.load('lib_perf_hw', 2, 'NONE')._name)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    assert said.stdout.strip() == str(tmp_path / "site/colmet/node/backends/lib_perf_hw/lib_perf_hw.so"), said.stderr
    assert not list((copy / "colmet").rglob("*.so"))  # the source stays as it was
