"""Make a fixture of an upgrade: files that real daemons of a source tree left when they were killed.

    python -m dev.upgrade_fixture --tree TREE tests/data/upgrade/NAME

As root. A collector and a node of TREE (default: this one) watch two real jobs. The fixture has, in `left.tar.xz`, HDF5
files that were closed, a journal whose last rows no output has written, and a spool that no collector has
acknowledged; both daemons were ended by SIGKILL. `rows.json.xz` has all rows as the daemons of TREE themselves read
these files afterwards, so it is made without the code that is tested.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]  # it has no types

from dev.live import Failed, JobRoot, free_port

ROOT = Path(__file__).resolve().parents[1]
LEFT, ROWS = "left.tar.xz", "rows.json.xz"
HDF5, JOURNAL, SPOOL, STATE = "rows", "rows.journal", "spool", "state"
WORK = 'while :; do dd if=/dev/zero of="$0" bs=4096 count=50 2>/dev/null; /bin/sleep 0.3; done'
FIRST_S, SECOND_S, ALONE_S = 6.0, 5.0, 4.0  # both outputs and the journal; the journal alone; the spool alone
DEADLINE_S = 60.0
NOWHERE = "http://127.0.0.1:9"  # a database that is never there


class Daemons:
    """A collector and a node of a source tree, with all files in one folder."""

    def __init__(self, tree: Path, folder: Path, cgroups: Path) -> None:
        self._folder = folder
        self._tree = tree
        self._cgroups = cgroups
        self._uri = f"tcp://127.0.0.1:{free_port()}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._options = {name: self._known(name) for name in ("collector", "node")}

    def _known(self, name: str) -> str:
        """Return the help of a daemon."""
        for option in ("--help-all", "--help"):
            command = [sys.executable, "-m", f"colmet.{name}.main", option]
            done = subprocess.run(command, cwd=self._tree, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout
        raise Failed(f"{self._tree}: no colmet-{name}: {done.stderr}")

    def start(self, name: str, *arguments: str) -> None:
        """Start one of them; options unknown to the tree are omitted."""
        more = [("--zeromq-curve-secret", ""), ("--archive-batch", "none"), ("--control-socket", "")]
        arguments += tuple([word for pair in more if pair[0] in self._options[name] for word in pair])
        with open(self._folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", f"colmet.{name}.main", "-v", *arguments],
                cwd=self._folder,  # so no path of this machine is in the files
                env={**os.environ, "PYTHONPATH": str(self._tree)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def collector(self, *arguments: str) -> None:
        """Start the collector."""
        database = ("--elastic-host", NOWHERE)
        hdf5 = ("--hdf5-filepath", HDF5, "--hdf5-complevel", "9")
        self.start("collector", "--zeromq-bind-uri", self._uri, *hdf5, *database, *arguments)

    def node(self) -> None:
        """Start the node."""
        kept = ("--spool-dir", SPOOL, "--state-dir", STATE)
        jobs = ("--cpuset_rootpath", str(self._cgroups), "--enable-jobproc")
        self.start("node", "--zeromq-uri", self._uri, "--sample-period", "1", *kept, *jobs)

    def end(self, name: str, number: int) -> None:
        """End one of them by a signal."""
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(DEADLINE_S)

    def close(self) -> None:
        """Kill those that run."""
        for name in list(self.running):
            self.end(name, signal.SIGKILL)


def stored_rows(paths: Sequence[Path], until: int) -> dict[str, Any]:
    """Return the rows up to a time of all HDF5 files, by table: its columns, and the values of each row."""
    found: dict[str, Any] = {}
    for path in paths:
        with h5py.File(path, "r") as file:
            for group in file.values():
                for name, table in group.items() if isinstance(group, h5py.Group) else ():
                    data = table[...]
                    columns = [column for column in data.dtype.names if column != "metric_backend"]
                    rows = found.setdefault(name, {"columns": sorted(columns), "rows": []})["rows"]
                    for row in data[data["timestamp"] <= until]:
                        rows.append([_plain(row[column]) for column in sorted(columns)])
    for table in found.values():
        table["rows"].sort(key=repr)
    return {name: table for name, table in sorted(found.items()) if table["rows"]}


def _plain(value: Any) -> Any:
    value = value.item()
    if isinstance(value, bytes):
        return value.decode()
    return None if value != value else value  # NaN


def wait_until_empty(folder: Path) -> None:
    """Wait until the collector has acknowledged all batches of the spool from before."""
    before = sorted(path.name for path in (folder / SPOOL).glob("*.spool*"))
    until = time.monotonic() + DEADLINE_S
    while any((folder / SPOOL / name).exists() for name in before):
        if time.monotonic() > until:
            raise Failed(f"the spool is not acknowledged: {(folder / 'node.log').read_text()}")
        time.sleep(0.2)


def make(tree: Path, out: Path) -> None:
    """Make a fixture."""
    with contextlib.ExitStack() as stack:
        root = JobRoot(f"colmet-upgrade-{os.getpid()}")
        stack.callback(root.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colmet-upgrade-")))
        for name in (SPOOL, STATE):
            (folder / name).mkdir(mode=0o700)
        daemons = Daemons(tree, folder, root.path)
        stack.callback(daemons.close)
        ended, running = root.job("alice_101"), root.job("bob_102")
        for job in (ended, running):
            job.start(["sh", "-c", WORK, str(folder / "written")], stdin=subprocess.DEVNULL)
        daemons.collector("--sample-period", "1", "--buffer-size", "1")
        daemons.node()
        time.sleep(FIRST_S)
        root.end(ended)
        time.sleep(2)
        daemons.end("collector", signal.SIGTERM)
        daemons.collector("--sample-period", "3600", "--buffer-size", "1000000")
        time.sleep(SECOND_S)
        daemons.end("collector", signal.SIGKILL)
        time.sleep(ALONE_S)
        daemons.end("node", signal.SIGKILL)
        killed = int(time.time())
        out.mkdir(parents=True, exist_ok=True)
        names = [name for name in sorted(os.listdir(folder)) if not name.endswith(".log") and name != "written"]
        with tarfile.open(out / LEFT, "w:xz", preset=9) as tar:
            for name in names:
                tar.add(folder / name, arcname=name, filter=_anonymous)
        time.sleep(2)
        daemons.collector("--sample-period", "1", "--buffer-size", "1")
        daemons.node()
        wait_until_empty(folder)
        time.sleep(3)
        daemons.end("node", signal.SIGTERM)
        daemons.end("collector", signal.SIGTERM)
        found = stored_rows(sorted(folder.glob(f"{HDF5}.*.hdf5")), killed)
        about = {"host": os.uname().nodename, "killed": killed, "tables": found}
        (out / ROWS).write_bytes(lzma.compress(json.dumps(about, separators=(",", ":")).encode(), preset=9))
    for name in (LEFT, ROWS):
        print(f"{out / name}: {(out / name).stat().st_size} bytes")
    for name, table in found.items():
        print(f"{name}: {len(table['rows'])} rows")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> int:
    """Make a fixture; 1 without root or cgroups."""
    parser = argparse.ArgumentParser(prog="python -m dev.upgrade_fixture", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="source tree of the daemons (default: this one)")
    parser.add_argument("out", type=Path, help="folder of the fixture")
    options = parser.parse_args()
    try:
        make(options.tree.resolve(), options.out)
    except Failed as err:
        print(f"upgrade_fixture: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
