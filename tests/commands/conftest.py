"""Fixtures that tests of this folder share."""

from __future__ import annotations

import io
import sys

import pytest

from colmet.commands import colmet


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The file of logins of a user without any, and without settings of the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("COLMET_TOKEN", "COLMET_URL", "http_proxy", "https_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config/colmet/logins.json"


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `colmet`; return the exit status, the standard output and the standard error."""

    def run(*argv, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            status = colmet.main([str(one) for one in argv])
        except SystemExit as end:
            status = end.code
        return (status, *capsys.readouterr())

    return run
