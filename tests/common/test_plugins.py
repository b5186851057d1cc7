"""Backends of other distributions: loaded by entry point, checked, and of no harm where they fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from colmet.collector import main as collector
from colmet.common.config import plugins
from colmet.common.config.configuration import Configuration
from colmet.common.errors import ConfigError
from colmet.common.host.host import Host
from colmet.common.wire import Decoder, v1
from colmet.node import main as node
from colmet.node.agent import Agent
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.schedule import Schedule
from tests.support.direct import Direct
from tests.support.outputs import write

ROOT = Path(__file__).parents[2]
OPTIONS = ("--disable-procstats", "--state-dir", "", "--spool-dir", "")


def blocks():
    """The files of the samples in the pages, by name."""
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "docs/plugins.md").read_text()
    return dict(re.findall(r"^```(?:python|toml) (\S+)\n(.*?)^```", text, re.M | re.S))


@pytest.fixture
def project(tmp_path):
    """The samples as a project, outside Colmet."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in blocks().items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution of a module, as pip does, in a folder of sys.path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    for main in (node, collector):
        main.load_backends.cache_clear()
    modules = set(sys.modules)

    def put(module, text, points, project=None):
        (site / f"{module}.py").write_text(text)
        metadata = site / f"{project or module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "entry_points.txt").write_text(points)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project or module}\nVersion: 1.0\n")

    yield put
    for main in (node, collector):
        main.load_backends.cache_clear()
    for name in set(sys.modules) - modules:
        if name.startswith("site_"):
            del sys.modules[name]


@pytest.fixture
def samples(install):
    files = blocks()
    install(
        *("site_filehandles", files["site_filehandles.py"]),
        "[console_scripts]\nx = y:z\n\n[colmet.node_backends]\nfilehandles = site_filehandles:FilehandlesBackend\n",
    )
    install(
        *("site_rowlog", files["site_rowlog.py"]),
        "[colmet.collector_backends]\n# of the site\nrowlog=site_rowlog:RowlogOutput [extra]\n",
    )


def load(main):
    main.load_backends.cache_clear()
    return main.load_backends()


def batch_of(options, root=None):
    """What a node with these options sends, as the collector decodes it."""
    host = Host() if root is None else Host(root=str(root))
    read = Configuration(node.full_parser, [*OPTIONS, *options]).read_for_start()
    parts = node.build(read, load(node).classes, host)
    source = JobSource(host, ["/none"], compile_patterns([DEFAULT_PATTERN]))
    wanted = [backend for backend in parts.backends if backend.name.startswith("file")]
    agent = Agent("n", source, wanted, Direct(None, None), Schedule(5.0))
    try:
        return Decoder().decode(v1.encode(agent.tick())).batches[0]
    finally:
        agent.close()
        parts.source.close()


def test_rows_of_a_plug_in_backend_arrive_through_a_plug_in_output(samples, tmp_path):
    batch = batch_of(["--enable-filehandles"])
    path = tmp_path / "rows"
    classes = load(collector).classes
    options = Configuration(collector.full_parser, ["--rowlog", str(path)]).read_for_start()
    (output,) = collector.build(options, classes).outputs
    write(output, [batch])
    ((host, table, job, values),) = map(json.loads, path.read_text().splitlines())
    assert (host, table, job) == ("n", "filehandles_default", 0)
    assert 0 < values["open_files"] <= values["max_files"]


def test_the_sample_is_a_backend_of_colmet_by_the_steps_of_the_page(tmp_path):
    """The class in a file of its own, the table in the catalogue, a line in NAMES."""
    shutil.copytree(ROOT / "colmet", tmp_path / "colmet", ignore=shutil.ignore_patterns("__pycache__", "static"))
    text = blocks()["site_filehandles.py"]
    schema = re.search(r"    schema = (Schema\(.*?\))", text)[1]
    fields = re.search(r"^PATH = .*?^\]\n", text, re.M | re.S)[0]
    top, tables = tmp_path / "colmet/node/backends", tmp_path / "colmet/common/tables"
    (tables / "filehandles.py").write_text(
        f"from colmet.common.schema import Field, Schema\n{fields}SCHEMA = {schema}\n"
    )
    text = text.replace(fields, "").replace(schema, "SCHEMA").replace("import Field, Sample, Schema", "import Sample")
    declared = "from colmet.common.tables.filehandles import PATH, SCHEMA\n"
    (top / "filehandles.py").write_text(text.replace("from colmet.node.backend", f"{declared}from colmet.node.backend"))
    edit(tables / "__init__.py", '("tasks", ', '("filehandles", "tasks", ')
    edit(
        top / "__init__.py",
        "NAMES = {\n",
        'NAMES = {\n    "filehandles": "colmet.node.backends.filehandles:FilehandlesBackend",\n',
    )
    program = (
        "from colmet.common.tables import is_declared; from colmet.node import main\n"
        "print(is_declared('filehandles_default'), '--enable-filehandles' in main.full_parser().format_help())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert done.stdout == "True True\n"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_help_and_the_configuration_know_the_options_of_plug_ins(samples, tmp_path):
    assert "--enable-filehandles" in node.full_parser().format_help()
    assert "output: rowlog" in collector.full_parser().format_help()
    path = tmp_path / "node.toml"
    path.write_text("enable-filehandles = true\n")
    assert Configuration(node.full_parser, ["--config", str(path)]).read().enable_filehandles
    assert load(node).counters() == {"loaded": 1, "failed": 0}
    assert str(load(node).plugins[0]) == "filehandles = site_filehandles:FilehandlesBackend of site_filehandles 1.0"


def test_a_site_that_lacks_the_file_gets_the_remedy(samples, fake, caplog):
    assert batch_of(["--enable-filehandles"], fake.path).tables == ()
    assert "/proc/sys/fs/file-nr: No such file or directory; mount /proc" in caplog.text


BROKEN = """
from site_filehandles import *

class Other(FilehandlesBackend):
    name = "other"
    schema = Schema("other_default", "node", FIELDS)
    @classmethod
    def add_options(cls, parser):
        parser.add_argument("--enable-other", action="store_true")
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "AttributeError: module 'site_broken' has no attribute 'Other'"),
        ("Other = 3", "no class that extends colmet.node.backend.InputBackend"),
        ("from colmet.node.backend import InputBackend\nclass Other(InputBackend): pass", "Other lacks add_options"),
        (BROKEN + "    name = 'taskstats'", "there is a backend named taskstats already"),
        (BROKEN + "    name = 'filehandles'", "there is a backend named filehandles already"),
        (BROKEN + "    name = 'agent'", "Other.name is 'agent'"),
        (BROKEN + "    schema = FilehandlesBackend.schema", "has the name of a table of filehandles"),
        (BROKEN + "    schema = Schema('cgroup_default', 'job', FIELDS)", "has the name of a table of cgroup"),
        (BROKEN + "    schema = Schema('agent_default', 'node', FIELDS)", "has the name of a table of Colmet"),
        (BROKEN + "    others = (Schema('other_default', 'job', FIELDS),)", "two of its tables have one name"),
        (BROKEN + "    agent_counters = (Field('mine', 'count', 'counter'),)", "no column for its counters mine"),
        (BROKEN + "    capabilities = {'CAP_NONE'}", "CAP_NONE"),
        (BROKEN.replace("--enable-other", "--enable-perfhw"), "conflicting option string: --enable-perfhw"),
        (BROKEN.replace('"--enable-other"', '"--other", dest="verbose"'), "--other stores its value as verbose"),
        (BROKEN.replace('store_true"', 'store", required=True'), "its argument --enable-other is required"),
        (BROKEN.replace('"--enable-other", action="store_true"', '"other"'), "its argument other is required"),
        (BROKEN.replace('store_true"', "store_true\", help='10 %'"), "write %% for a %"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_line_and_the_others_are_loaded(samples, install, text, problem):
    install("site_zbroken", "", "")  # no group: no plug-in
    install("site_broken", text, "[colmet.node_backends]\nother = site_broken:Other\n", project="zz")
    found = load(node)
    (line,) = found.problems
    assert line.startswith("other = site_broken:Other of zz 1.0: ") and problem in line and "\n" not in line
    assert [cls.name for cls in found.classes][-1] == "filehandles" and found.counters() == {"loaded": 1, "failed": 1}


def test_the_daemon_starts_without_a_broken_plug_in_whose_options_are_given(install, tmp_path, caplog):
    install("site_broken", "import no_such", "[colmet.node_backends]\nother = site_broken:Other\n")
    path = tmp_path / "node.toml"
    path.write_text('other-period = 3\nsample-period = 2\nzeromq-uri = "tcp://127.0.0.1:1"\n')
    assert node.main(["--check-config", "--config", str(path), "--enable-other", "--other-device", "x"]) == 0
    err = caplog.text
    assert "plug-in not loaded: other = site_broken:Other of site_broken 1.0: No module named 'no_such'" in err
    assert "a plug-in is not loaded: --enable-other --other-device --other-period" in err
    with pytest.raises(ConfigError):
        Configuration(lambda: node.build_parser(plugins.startup.load(node.NAMES)), ["--config", str(path)]).read()


def test_a_plug_in_that_fails_in_the_middle_removes_nothing_else(samples, install, caplog, tmp_path):
    text = BROKEN.replace("name", "on = True; name", 1) + (
        "    @classmethod\n    def from_options(cls, options, host):\n        raise RuntimeError('my fault')\n"
    )
    install("site_broken", text, "[colmet.node_backends]\nother = site_broken:Other\n")
    batch = batch_of(["--enable-filehandles", "--enable-other"])
    assert [table.schema.name for table in batch.tables] == ["filehandles_default"]
    assert "plug-in failed backend=other: RuntimeError: my fault" in caplog.text


def test_a_damaged_distribution_hides_no_other(samples, tmp_path):
    damaged = tmp_path / "site" / "damaged-1.0.dist-info"
    damaged.mkdir()
    (damaged / "entry_points.txt").write_bytes(b"[colmet.node_backends]\nx = \xff\n")
    assert [entry.name for entry in plugins.find("colmet.node_backends")] == ["filehandles"]


@pytest.mark.slow
def test_a_distribution_that_pip_installs_is_loaded(project, tmp_path):
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(project)], check=True, timeout=120)
    text = "from colmet.{} import main\nprint([str(one) for one in main.load_backends().plugins])"
    for side, name in (("node", "filehandles = "), ("collector", "rowlog = ")):
        done = subprocess.run(
            [sys.executable, "-c", text.format(side)],
            env={**os.environ, "PYTHONPATH": f"{target}:{ROOT}"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        assert name in done.stdout and "site-filehandles 1.0" in done.stdout.replace("_", "-")
