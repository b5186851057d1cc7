from __future__ import annotations

import re
import subprocess

import pytest

from colmet.common.errors import BackendUnavailable
from colmet.node.kernel import clib
from tests.support.place import require_programs

VARIABLE = "LIB_MADE_UP_PATH"
ABI = 7


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


def test_a_missing_one_and_a_built_one_of_another_colmet_say_how_to_build_it(backends, tmp_path, monkeypatch):
    with pytest.raises(BackendUnavailable, match=f"`make -C {backends}/lib_made_up` builds it .it needs gcc"):
        load()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(BackendUnavailable, match="builds it"):
        load()
    build(backends / "lib_made_up", source(ABI - 1, 1))
    with pytest.raises(BackendUnavailable, match=f"speaks ABI {ABI - 1}.*builds it"):
        load()
