"""The job archive, made again from real Elasticsearch and OpenSearch, equals the one that the collector wrote."""

from __future__ import annotations

import pytest

from colmet.commands import archive, colmet
from tests.beds.search import KINDS, Server, available
from tests.support.archive_fleet import cluster, collected, content

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module", params={KINDS[kind].vendor: kind for kind in available()}.values())
def server(request):
    with Server(request.param) as server:
        yield server


def test_an_archive_made_again_from_a_database_equals_the_first_one(server, tmp_path, monkeypatch, capsys):
    first, again = tmp_path / "first.sqlite", tmp_path / "again.sqlite"
    written = ("--elastic-host", server.url, "--journal-dir", str(tmp_path / "journal"), "--archive", str(first))
    scripts = cluster(6, 25, 150, seed=9)
    sent = [table for batches in scripts.values() for batch in batches for table in batch.tables]
    rows = sum(len(table.rows) for table in sent)
    indices = ",".join(
        sorted({f"colmet_{table.schema.name}*" for table in sent})
    )  # not those of the collector's own rows

    def is_stored():
        server.ask("POST", f"/{indices}/_refresh")
        return server.ask("GET", f"/{indices}/_count")["count"] == rows

    collected(scripts, tmp_path, *written, is_stored=is_stored)
    windows = archive.windows
    monkeypatch.setattr(archive, "windows", lambda amounts: windows(amounts, 100_000))
    config = tmp_path / "reader.toml"
    config.write_text(f'elastic-host = "{server.url}"\n')
    words = ("--archive", str(tmp_path / "none"), "--config", str(config), "--output", str(again))
    status = colmet.main(["archive", "rebuild", *words])
    assert (status, capsys.readouterr().err) == (0, "")
    expected, found = content(first), content(again)
    assert len([key for key in expected if len(key) == 1]) == 25
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == row, key
