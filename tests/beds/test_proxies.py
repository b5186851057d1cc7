"""The page behind real nginx and Apache on a Unix socket, with the configurations of docs/tools/http.md."""

from __future__ import annotations

import base64
import contextlib
import grp
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path

import pytest

from colmet.web.access import Access
from colmet.web.options import UnixAddress
from tests.support.place import cannot_run
from tests.support.waiting import free_port, wait_for
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import running

COMMON = Path(__file__).with_name("common.sh")
PAGE = Path(__file__).parents[2] / "docs/tools/http.md"
MODULES = (
    *("mpm_event", "authz_core", "authz_user", "authn_core", "authn_file", "auth_basic", "headers", "proxy"),
    *("proxy_http", "reqtimeout", "ssl"),
)
USERS = {"alice": "secret", "root": "toor"}
HEAD = b"GET /api/v1/whoami HTTP/1.1\r\nHost: jobs.example.org\r\n"


def documented(kind):
    """The configuration of a proxy, as the page has it."""
    return re.search(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[1]


def nginx(folder, configuration):
    configuration = configuration.replace("header_timeout 10s", "header_timeout 1s")
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid; error_log {folder}/error.log; user www-data; events {{}}\n"
        f"http {{ access_log off;\n{configuration}\n}}\n"
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder), "-g", "daemon off;"]


def apache(folder, configuration):
    configuration = configuration.replace("header=10", "header=1")
    port = re.search(r"127.0.0.1:(\d+)>", configuration)[1]
    lines = [f"LoadModule {one}_module /usr/lib/apache2/modules/mod_{one}.so" for one in MODULES]
    lines += ["ServerName localhost", f"ServerRoot {folder}", f"PidFile {folder}/pid", f"ErrorLog {folder}/error.log"]
    lines += [f"DefaultRuntimeDir {folder}", "User www-data", "Group www-data", f"Listen 127.0.0.1:{port}"]
    (folder / "apache.conf").write_text("\n".join([*lines, configuration]))
    return ["apache2", "-f", str(folder / "apache.conf"), "-D", "FOREGROUND"]


class Proxy:
    """A proxy in front of a page, as a client sees it."""

    def __init__(self, port, certificate):
        self.port = port
        self._context = ssl.create_default_context(cafile=certificate)

    def connect(self):
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        return self._context.wrap_socket(plain, server_hostname="localhost")

    def ask(self, login="", **headers):
        connection = http.client.HTTPSConnection("localhost", self.port, context=self._context, timeout=30)
        with contextlib.closing(connection):
            if login:
                headers["Authorization"] = "Basic " + base64.b64encode(f"{login}:{USERS[login]}".encode()).decode()
            connection.request("GET", "/api/v1/whoami", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def is_there(self):
        with contextlib.suppress(OSError):
            self.connect().close()
            return True
        return False


@pytest.fixture(params=[("nginx", "nginx", nginx), ("apache", "apache2", apache)], ids=["nginx", "apache"])
def proxy(request):
    kind, package, prepare = request.param
    if os.geteuid():
        cannot_run("needs root, to start a proxy as www-data")
    subprocess.run(["bash", "-c", '. "$0"; install_packages "$@"', str(COMMON), package, "openssl"], check=False)
    if shutil.which(package) is None:
        cannot_run(f"this needs the package {package}")
    with tempfile.TemporaryDirectory(prefix="colmet-proxy-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        folder.chmod(0o755)
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
        subprocess.run([*make, "-keyout", folder / "key", "-out", folder / "cert"], check=True, capture_output=True)
        hashed = [
            f"{user}:{subprocess.check_output(['openssl', 'passwd', '-apr1', word], text=True)}"
            for user, word in USERS.items()
        ]
        (folder / "users").write_text("".join(hashed))
        text = documented(kind)
        for old, new in (
            ("/etc/ssl/certs/jobs.pem", f"{folder}/cert"),
            ("/etc/ssl/private/jobs.key", f"{folder}/key"),
            (f"/etc/{package}/colmet.users", f"{folder}/users"),
            ("/run/colmet/http/http.sock", f"{folder}/http.sock"),
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("<VirtualHost *:443>", f"<VirtualHost 127.0.0.1:{port}>"),
        ):
            text = text.replace(old, new)
        access = Access(None, "admins", is_member=lambda user, group: user == "root", user_header="X-Remote-User")
        stack.enter_context(running(MadeUpFacts(20, 40), UnixAddress(f"{folder}/http.sock"), access))
        os.chown(folder / "http.sock", -1, grp.getgrnam("www-data").gr_gid)
        process = subprocess.Popen(prepare(folder, text), stderr=subprocess.PIPE, text=True)
        found = Proxy(port, str(folder / "cert"))
        try:
            wait_for(lambda: found.is_there() or process.poll() is not None)
            assert process.poll() is None, process.stderr.read() + text
            yield found
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_the_proxy_names_the_user_and_a_client_cannot(proxy):
    for login, is_admin in (("alice", False), ("root", True)):
        for headers in ({}, {"X-Remote-User": "root"}, {"x-remote-user": "mallory"}):
            status, body = proxy.ask(login, **headers)
            found = json.loads(body)
            assert (status, found["user"], found["admin"]) == (200, login, is_admin)
    assert proxy.ask()[0] == proxy.ask(**{"X-Remote-User": "root"})[0] == 401


def test_the_proxy_ends_a_request_that_does_not_arrive(proxy):
    with proxy.connect() as connection:
        connection.sendall(HEAD)
        assert b"200 OK" not in connection.recv(4096), "it ends the connection, or answers 408"
    assert proxy.ask("alice")[0] == 200
