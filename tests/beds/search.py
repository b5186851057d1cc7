"""Elasticsearch and OpenSearch as the tests have them: real servers, alone or in a cluster, made of the published jars.

Maven fetches the jars once, into its own repository; where Maven or Java is missing, the Debian package is installed.
By hand, servers that run until Enter is pressed: PYTHONPATH=.:tests python tests/beds/search.py opensearch [COUNT]
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import requests

from tests.support.place import cannot_run, require_programs
from tests.support.waiting import free_port

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "search_server"
BUILD = ROOT / "build/search"  # git ignores it
FETCH_S = 600
READY_S = 180  # a start needs 4 s, alone on a machine


class Kind(NamedTuple):
    """A server to be had.

    Attributes:
        vendor: also the name of its packages.
        version: of it.
        log4j: version that it was built with.
        network: class of the plug-in that serves HTTP.
        scripts: class of the plug-in that runs scripts (Painless), or "": Elasticsearch does not publish its own.
        java: oldest version that runs it.
        has_data_streams: whether the published jars do them; those of Elasticsearch are in a module that is not there.
    """

    vendor: str
    version: str
    log4j: str
    network: str
    scripts: str
    java: int
    has_data_streams: bool


KINDS = {
    "elasticsearch": Kind("elasticsearch", "7.17.28", "2.17.1", "Netty4Plugin", "", 17, False),
    "opensearch": Kind("opensearch", "2.19.1", "2.21.0", "Netty4Plugin", "PainlessPlugin", 17, True),
    "opensearch3": Kind("opensearch", "3.0.0", "2.21.0", "Netty4ModulePlugin", "PainlessModulePlugin", 21, True),
}


def find_java(at_least):
    """Home of the oldest Java that is new enough and brings its compiler; None where there is none."""
    found = []
    for release in Path("/usr/lib/jvm").glob("*/release"):
        version = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.M)
        if version and int(version[1]) >= at_least and (release.parent / "bin/javac").exists():
            found.append((int(version[1]), str(release.parent)))
    return min(found)[1] if found else None


def available():
    """The kinds that this machine can have; Debian packages may bring Java 17, but no later one.

    DATABASES=newest leaves the newest of each vendor.
    """
    found = [name for name, kind in KINDS.items() if kind.java <= 17 or find_java(kind.java)]
    return list(
        {KINDS[name].vendor: name for name in found}.values() if os.environ.get("DATABASES") == "newest" else found
    )


def need(package):
    subprocess.run([str(ROOT / "scripts/need.sh"), package], check=False)


def java_for(kind):
    home = find_java(kind.java)
    if home is None:
        need("default-jdk-headless")
        home = find_java(kind.java)
    if home is None:
        cannot_run(f"{kind.vendor} {kind.version} needs a Java development kit, {kind.java} or later, in /usr/lib/jvm")
    return home


def classes(kind, home):
    """The paths of the jars and of the server's own class, as Java reads them; made where they are not yet there, one
    at a time."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = _jars(kind)
        return f"{path}:{_compiled(kind, home, path)}"


def _compiled(kind, home, path):
    folder = BUILD / f"{kind.vendor}-{kind.version}"
    source, made = folder / "Server.java", folder / "Server.class"
    text = (SOURCE / source.name).read_text().replace("opensearch", kind.vendor)
    if not made.exists() or source.read_text() != text:
        folder.mkdir(exist_ok=True)
        made.unlink(missing_ok=True)
        source.write_text(text)
        compiler = [f"{home}/bin/javac", "-cp", path, str(source)]
        done = subprocess.run(compiler, capture_output=True, text=True, timeout=READY_S, check=False)
        assert done.returncode == 0, done.stderr
    return folder


def _jars(kind):
    known = BUILD / f"{kind.vendor}-{kind.version}.classpath"
    is_current = known.exists() and known.stat().st_mtime > (SOURCE / "pom.xml").stat().st_mtime
    if is_current and all(Path(jar).exists() for jar in known.read_text().split(":")):
        return known.read_text()
    if shutil.which("mvn") is None:
        need("maven")
    require_programs("mvn")
    new = known.with_suffix(f".{os.getpid()}")
    print(f"search bed: fetching {kind.vendor} {kind.version}", file=sys.stderr, flush=True)
    command = [
        *("mvn", "-B", "-q", "-f", str(SOURCE / "pom.xml"), "dependency:build-classpath"),
        *(f"-Dvendor={kind.vendor}", f"-Dvendor.version={kind.version}", f"-Dlog4j.version={kind.log4j}"),
        f"-Dmdep.outputFile={new}",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as maven:
        try:
            said, _ = maven.communicate(timeout=FETCH_S)
        except BaseException:
            os.killpg(maven.pid, signal.SIGKILL)
            raise
    if maven.returncode:
        cannot_run(f"Maven could not fetch {kind.vendor} {kind.version}: {said[-2000:]}")
    new.rename(known)
    return known.read_text()


class Server:
    """A server on a port of loopback, with its data and its log in a directory of its own.

    It is not started yet. It keeps its port and its data until `stop`, so `kill` and `start` are a crash and a restart.
    As a context manager, it is started and stopped.

    Args:
        kind: one of `KINDS`.
        settings: more of its settings, by name: {"indexing_pressure.memory.limit": "1kb"}.

    Attributes:
        url: where it listens, http://127.0.0.1:PORT.
        log: what it logged, a file.
    """

    def __init__(self, kind, settings=None):
        self.kind = KINDS[kind]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = Path(tempfile.mkdtemp(prefix=f"colmet-{kind}-"))
        self.log = self._directory / "server.log"
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy
        self._settings = {
            "cluster.name": "colmet",
            "node.name": kind,
            "path.home": self._directory,
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": self.port,
            "transport.port": 0,
            "cluster.routing.allocation.disk.threshold_enabled": "false",  # the disk of a test machine may be fuller
            **(settings or {}),
        }
        self.name = self._settings["node.name"]
        self.process = None

    def start(self, wait=True):
        """Start it, with the data that it has; `wait` returns when all of them can be searched."""
        home = java_for(self.kind)
        command = [
            f"{home}/bin/java",
            *("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            f"-Dlog4j2.configurationFile={SOURCE / 'log4j2.properties'}",
            *("-cp", classes(self.kind, home), "Server"),
            ",".join(self._plugins()),
            *(f"{name}={value}" for name, value in self._settings.items()),
        ]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self._directory, start_new_session=True
            )
        if wait:
            self.wait()
        return self

    def _plugins(self):
        yield f"org.{self.kind.vendor}.transport.{self.kind.network}"
        if self.kind.scripts:
            yield f"org.{self.kind.vendor}.painless.{self.kind.scripts}"

    def wait(self, status="yellow"):
        """Wait until it can be searched and written to, and its data are as safe as this status of the cluster says."""
        until = time.monotonic() + READY_S
        while True:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()[-8000:]
            with contextlib.suppress(requests.RequestException):
                path = f"/_cluster/health?wait_for_status={status}&timeout=5s"
                health = self._session.get(self.url + path, timeout=20)
                if health.ok and not health.json()["timed_out"]:
                    return
            time.sleep(0.1)

    def kill(self):
        """SIGKILL; it is gone when this returns. No harm where it is not running."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdin.close()
            self.process = None

    def pause(self):
        """SIGSTOP: it accepts connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        """End it and remove all of it; it can not be started again."""
        self.kill()
        self._session.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_):
        self.stop()

    def ask(self, method, path, body=None, status=None):
        """Ask it something, and have its answer, decoded.

        Args:
            method: of HTTP.
            path: from the slash on.
            body: sent as JSON; a list, as one line each.
            status: that the answer has to have; None for any that is not an error.
        """
        lines = isinstance(body, list)
        text = "".join(json.dumps(line) + "\n" for line in body) if lines else json.dumps(body)
        answer = self._session.request(
            method,
            self.url + path,
            data=None if body is None else text.encode(),
            headers={"Content-Type": "application/x-ndjson" if lines else "application/json"},
            timeout=60,
        )
        as_it_should = answer.ok if status is None else answer.status_code == status
        assert as_it_should, f"{method} {path}: {answer.status_code} {answer.text[:4000]}"
        return answer.json() if answer.content else None

    def documents(self, pattern):
        """All documents of the indices that a pattern names, as the server's hits, with their versions."""
        self.ask("POST", f"/{pattern}/_refresh")
        body = {"size": 10_000, "sort": ["_doc"], "version": True}
        page = self.ask("POST", f"/{pattern}/_search?scroll=1m", body)
        hits = []
        while page["hits"]["hits"]:
            hits += page["hits"]["hits"]
            page = self.ask("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]})
        return hits

    def clear(self):
        """Remove all indices, data streams and templates."""
        if self.kind.has_data_streams:
            self.ask("DELETE", "/_data_stream/*")
        self.ask("DELETE", "/*")
        self.ask("DELETE", "/_index_template/*")


class Cluster:
    """Servers that are one cluster, on loopback; as a context manager, they are started and stopped.

    Args:
        kind: one of `KINDS`.
        count: of servers.

    Attributes:
        servers: each as it would be alone; `kill` and `start` are a crash and a restart of one.
    """

    def __init__(self, kind, count=3):
        ports = [free_port() for _ in range(count)]
        names = [f"{kind}-{n}" for n in range(count)]
        voters = "cluster_manager" if KINDS[kind].vendor == "opensearch" else "master"
        self.servers = [
            Server(
                kind,
                {
                    "node.name": name,
                    "discovery.type": "zen",
                    "discovery.seed_hosts": ",".join([f"127.0.0.1:{one}" for one in ports]),
                    f"cluster.initial_{voters}_nodes": ",".join(names),
                    "transport.port": port,
                },
            )
            for name, port in zip(names, ports)
        ]

    def __enter__(self):
        try:
            for server in self.servers:
                server.start(wait=False)
            for server in self.servers:
                server.wait()
            found = self.servers[0].ask("GET", f"/_cluster/health?wait_for_nodes={len(self.servers)}&timeout=60s")
            assert not found["timed_out"], found
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for server in self.servers:
            server.stop()

    def manager(self):
        """The server that manages the cluster now, as one that runs says."""
        running = [server for server in self.servers if server.process is not None]
        state = running[0].ask("GET", "/_cluster/state/master_node,nodes")
        name = state["nodes"][state["master_node"]]["name"]
        return next(server for server in running if server.name == name)


if __name__ == "__main__":
    with Cluster(sys.argv[1], int(sys.argv[2])) if sys.argv[2:] else Server(sys.argv[1]) as running:
        for one in getattr(running, "servers", [running]):
            print(one.url)
        input("Enter ends it\n")
