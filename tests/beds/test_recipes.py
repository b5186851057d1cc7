"""docs/recipes.md, to the letter: its blocks run on a head node of their own, over a store of a real collector."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import time
from pathlib import Path

import certifi
import pytest
import yaml

from colmet.common.schema import Batch
from tests.beds.site import Site, install_packages
from tests.support.archive_fleet import collected
from tests.support.archives import replayed
from tests.support.made_up_history import MadeUp, job_rows, node_rows

pytestmark = [pytest.mark.live, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs/recipes.md"
BLOCKS = {name: text for _, name, text in re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)}
# `test_packages.py` runs these, in a Debian with systemd
OTHERS = set(re.findall(r'RECIPES\["(.+?)"\]', Path(__file__).with_name("test_packages.py").read_text()))
CORES = {"node-1": 3.5, "node-2": 0.5}  # that job 4242 uses
COLLECTOR = 'hdf5-filepath = "/var/lib/colmet/colmet"\n'
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
cat > /dev/null
echo "$1" >> /root/reached
"""


def scripts_of_a_cluster():
    """Job 4242 of alice on two nodes, 4243 of bob on a third, two days ago."""
    start = int(time.time()) // 100 * 100 - 2 * 86400
    history, jobs = MadeUp(), {"node-1": 4242, "node-2": 4242, "node-3": 4243}
    for host, job in jobs.items():
        user = b"alice" if job == 4242 else b"bob"
        job_rows(history, job=job, host=host, cores=CORES.get(host, 0.02), start=start, user=user, count=61)
        node_rows(history, host=host, start=start, jobs=(job,), count=70)
    scripts: dict[str, list[Batch]] = {}
    for batch in replayed(history, [4242, 4243]):
        mine = scripts.setdefault(batch.host, [])
        is_there = any(table.schema.scope == "job" for table in batch.tables)
        here = (jobs[batch.host],) if is_there else ()
        mine.append(batch._replace(epoch=start * 10**9, seq=len(mine) + 1, jobs=here))
    return scripts


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recipes")
    store = directory / "store"
    store.mkdir()
    collected(scripts_of_a_cluster(), store, "--hdf5-filepath", str(store / "colmet"), "--control-socket", "")
    site = Site(directory)
    try:
        site.run(f"mkdir -p /etc/colmet /var/lib/colmet; cp -r {store}/. /var/lib/colmet")
        site.path("/etc/colmet/collector.toml").write_text(COLLECTOR)
        for name, text in BLOCKS.items():
            if re.fullmatch(r"\w+\.(py|R)", name):
                (site.folder / name).write_text(text)
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def data(site):
    """The files of the first block, and its virtual environment."""
    export, install = BLOCKS["pandas"].split("python3 -m venv")
    site.run(export)
    site.run("python3 -m venv" + install, fetch=True)
    return site


def numbers(line):
    return [float(one) for one in re.findall(r"-?\d+\.\d+", line)]


def line_of(word, said):
    return next(line for line in said.splitlines() if word in line)


def wasted(data):
    """Core hours of each user, as the archive has them."""
    with open(data.folder / "jobs.csv") as file:
        jobs = {job["user"]: round(float(job["wasted_core_s"]) / 3600, 1) for job in csv.DictReader(file)}
    assert set(jobs) == {"alice", "bob"} and min(jobs.values()) > 0
    return jobs


def test_every_block_with_a_name_is_run():
    run = {"pandas", "job.py", "wasted.py", "hdf5.py", "sql.py", "job.R", "hdf5.R", "grafana", "retention", "keys"}
    run |= {"access", "login", "report", "/etc/colmet/collector.toml", "/var/www/ood/apps/sys/colmet/manifest.yml"}
    assert set(BLOCKS) == run | OTHERS
    assert len(re.findall("^```", PAGE.read_text(), re.M)) == 2 * len(
        re.findall(r"^```\w+ \S+$", PAGE.read_text(), re.M)
    ), "a block without a name is not run"


def test_pandas_has_the_cores_of_each_host(data):
    said = data.run("~/data/bin/python job.py")
    for host, cores in CORES.items():
        assert numbers(line_of(host, said)) == [cores, cores, 3.0, 3.0]


def test_pandas_has_who_wasted_most(data):
    said = data.run("~/data/bin/python wasted.py")
    for user, hours in wasted(data).items():
        assert numbers(line_of(user, said))[1] == hours


def test_pandas_reads_the_files_of_the_collector(data):
    said = data.run("~/data/bin/python hdf5.py")
    assert [numbers(line_of(host, said)) for host in CORES] == [[3.0], [3.0]]


def test_duckdb_has_the_same_by_sql(data):
    said = data.run("~/data/bin/python sql.py")
    for host, cores in CORES.items():
        assert numbers(line_of(host, said)) == [3.0, cores]
    for user, hours in wasted(data).items():
        assert numbers(line_of(user, said)) == [hours]


def test_r_has_the_same_from_both_files(data):
    install_packages("r-base-core", "r-bioc-rhdf5")
    said = data.run("Rscript job.R")
    assert numbers(line_of("Mean", said)) == list(CORES.values())
    said = data.run("Rscript hdf5.R")
    assert re.search(r"node-1 +3\n.*node-2 +3$", said, re.M)


def test_grafana_gets_the_dashboards_and_where_they_are(site):
    site.run(f"cd {PAGE.parents[1]} && {BLOCKS['grafana']}")
    provisioning = site.path("/etc/grafana/provisioning")
    (provider,) = yaml.safe_load((provisioning / "dashboards/colmet.yaml").read_text())["providers"]
    dashboards = [json.loads(path.read_text()) for path in site.path(provider["options"]["path"]).glob("*.json")]
    assert {one["title"] for one in dashboards} and all("prometheus" in one["uid"] for one in dashboards)
    (source,) = yaml.safe_load((provisioning / "datasources/colmet-prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"


def test_retention_is_a_configuration_that_works(site):
    text = re.findall(r"^```toml (\S+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert [name for name, _ in text] == ["/etc/colmet/collector.toml"] * 2
    site.path("/etc/colmet/collector.toml").write_text(text[0][1])
    try:
        said = site.run(BLOCKS["retention"])
        assert "is the newest of its collector" in said and len(site.run("ls /var/lib/colmet/*.hdf5").split()) == 1
    finally:
        site.path("/etc/colmet/collector.toml").write_text(COLLECTOR)


def test_a_hundred_nodes_get_keys_and_the_rest_is_done_later(site):
    site.program("ssh", SSH)
    site.run("colmet keygen collector --if-missing")
    site.run(BLOCKS["keys"])
    names = (site.folder / "nodes.txt").read_text().split()
    assert len(names) == 100 and names[6] == "node-007"
    assert sorted(site.path("/root/reached").read_text().split()) == names
    assert len(list(site.path("/etc/colmet/keys/nodes").iterdir())) == 100
    assert site.run(BLOCKS["keys"]).count("unchanged") == 100


@pytest.fixture
def interface(site):
    """The collector of the recipe, with a certificate of its own."""
    configuration = re.findall(r"^```toml \S+\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[1]
    site.path("/etc/colmet/collector.toml").write_text(configuration)
    site.run("echo '127.0.0.1 localhost head.example.org' > /etc/hosts; mkdir /etc/colmet/tls; rm -rf /etc/colmet/keys")
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=head.example.org"
    )
    site.run(f"{make} -addext subjectAltName=DNS:head.example.org -keyout key.pem -out cert.pem 2>&1")
    site.run("mv key.pem cert.pem /etc/colmet/tls; cp /etc/colmet/tls/cert.pem ca.pem")
    site.type_password(BLOCKS["access"], "secret")
    arguments, environment = site.command(
        "exec colmet-collector --config /etc/colmet/collector.toml --control-socket ''"
    )
    log = site.folder / "collector.log"
    with open(log, "w") as file:
        process = subprocess.Popen(arguments, env=environment, stdout=file, stderr=file)
    try:
        site.run("for n in {1..300}; do ! (exec 3<>/dev/tcp/127.0.0.1/8080) 2>&1 || exit 0; sleep 0.1; done; exit 1")
        assert process.poll() is None, log.read_text()
        yield site
    finally:
        process.terminate()
        process.wait(60)


def test_a_user_on_a_login_node_sees_her_report(interface):
    interface.run(f"mount --bind ca.pem {certifi.where()}; mkdir /root/alice")  # an authority of this machine
    interface.type_password(BLOCKS["login"], "secret", HOME="/root/alice")
    said = interface.run(BLOCKS["report"], HOME="/root/alice")
    assert "Job 4242 of alice on 2 hosts" in said and "bob" not in said
    said = interface.run("colmet report 4243 --url https://head.example.org:8080", status=1, HOME="/root/alice")
    assert not said


def test_the_link_of_open_ondemand_is_an_app_of_it():
    app = yaml.safe_load(BLOCKS["/var/www/ood/apps/sys/colmet/manifest.yml"])
    # of lib/apps/manifest.rb of Open OnDemand 4.2: other keys are ignored there
    assert set(app) <= {
        "name",
        "description",
        "category",
        "subcategory",
        "icon",
        "role",
        "url",
        "new_window",
        "caption",
    }
    assert app["url"].startswith("https://") and app["new_window"] is True
    assert "server_name jobs.example.org" in (PAGE.parent / "tools/http.md").read_text()
