"""A real Prometheus scrapes both daemons, and its promtool reads their pages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.support.place import cannot_run
from tests.support.waiting import free_port, wait_for

COMMON = Path(__file__).with_name("common.sh")
# Names of columns are the kernel's own, so some are not in Prometheus' style.
ALLOWED = re.compile(r"colmet_job_\S+ metric names should be written in 'snake_case' not 'camelCase'")


@pytest.fixture(scope="module")
def prometheus():
    # without starting the service that the package brings
    done = subprocess.run(["bash", "-c", '. "$0"; install_packages prometheus', str(COMMON)], check=False)
    if done.returncode or shutil.which("promtool") is None:
        cannot_run("this needs the package prometheus")


def address(daemon):
    daemon.said("metrics at http")
    return re.search(r"metrics at http://(\S+)/metrics", daemon.log.read_text())[1]


@pytest.mark.usefixtures("root", "prometheus")
def test_prometheus_reads_the_pages_and_answers_queries(daemons, tmp_path):
    pages = [address(daemon) for daemon in daemons("--enable-infiniband")]
    for page in pages:
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=20) as answer:
            text = answer.read()
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode().splitlines()
        assert not [line for line in said if not ALLOWED.fullmatch(line)]
        assert done.returncode in (0, 3), "3: all is well but for the style"
    (tmp_path / "p.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: colmet, honor_labels: true, "
        f"static_configs: [{{targets: {json.dumps(pages)}}}]}}]\n"
    )
    listen = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={tmp_path}/p.yml", f"--storage.tsdb.path={tmp_path}/d", f"--web.listen-address={listen}"]
    log = open(tmp_path / "prometheus.log", "w")  # noqa: SIM115 - closed below
    with log, subprocess.Popen(["prometheus", *options], stdout=log, stderr=log) as server:
        try:

            def query(text):
                url = f"http://{listen}/api/v1/query?query={urllib.parse.quote(text)}"
                try:
                    with urllib.request.urlopen(url, timeout=20) as answer:
                        found = json.load(answer)["data"]["result"]
                except OSError:  # it is about to start
                    return {}
                return {
                    (one["metric"].get("instance"), one["metric"].get("job")): float(one["value"][1]) for one in found
                }

            wait_for(lambda: list(query("up == 1").values()) == [1, 1], timeout_s=60)
            wait_for(lambda: query("colmet_collector_nodes{state='heard'} == 1"), timeout_s=30)
            wait_for(lambda: query("rate(colmet_node_ticks_total[5s]) > 1"), timeout_s=30)
            # "job" is the job of the batch system, as honor_labels says
            assert set(query("colmet_job_jobprocstats_VmRSS > 1000")) == {(page, "0") for page in pages}
        finally:
            server.kill()
