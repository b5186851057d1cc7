"""The pictures of the documentation, made by the tools themselves of a real run: ``make docs-pictures``, as root.

Jobs run on this machine under three colmet-node, each with the name of a node, and one colmet-collector with its page;
it needs four minutes. Pictures of pages are made where Chromium is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from colmet.common.daemon.wakeup import readable
from dev.browsers.chromium import Chromium
from dev.live import Failed, JobRoot, LiveJob, free_port

HEAD, NODES = "head", ("node-1", "node-2", "node-3")
JOB, OTHER_JOB = 4242, 4243
BEFORE = {
    "carol_4238": (2, 1.0),
    "alice_4239": (1, 0.9),
    "dave_4241": (1, 0.1),
}  # processes, share of a core
LIMIT_BYTES = 1 << 30
MAX_BYTES = 150_000  # of a picture
COLUMNS, ROWS = 80, 24
KERNEL = os.uname().release
PALETTE = 64  # colours
BEFORE_S = 65
SHOWN_S = 140  # of the run, in the picture of a node
LIVE_S, REST_S = 36, 5  # from the start of the jobs to the live pictures, and from these to the jobs' end

# Computes in turns with others: the number of computing processes and the used memory vary with time.
_SOLVE = """
import os, sys, time
share, megabytes, path = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
kept, begin = [], time.monotonic()
while (now := time.monotonic() - begin) < 95:
    if now > 12 and 12 + len(kept) * 40 / megabytes < now and len(kept) < megabytes:
        kept.append(os.urandom(1 << 20) * 1)
    busy = share * (0.35 if 40 < now < 52 else 1.0)
    until = time.monotonic() + 0.1 * busy
    while time.monotonic() < until:
        sum(i * i for i in range(3000))
    if 40 < now < 52:
        with open(path, "ab") as file:
            file.write(kept[0])
            file.flush()
            os.fsync(file.fileno())
    time.sleep(0.1 - 0.1 * busy)
"""
_BUSY = """
import sys, time
share, end = float(sys.argv[1]), time.monotonic() + 70
while time.monotonic() < end:
    until = time.monotonic() + 0.1 * share
    while time.monotonic() < until:
        sum(i * i for i in range(3000))
    time.sleep(0.1 - 0.1 * share)
"""
_SHORT = "while :; do for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; sleep 0.15; done"


class Picture(NamedTuple):
    """A picture of a command's output in a terminal.

    Attributes:
        name: of the file.
        command: of colmet; {folder} is the folder of the run.
        host: the machine's name during the command.
        keys: keys to press, each after a delay in seconds; the picture is taken before the last one.
    """

    name: str
    command: str
    host: str = HEAD
    keys: Sequence[tuple[float, str]] = ()


class View(NamedTuple):
    """A picture of a view of the page.

    Attributes:
        name: of the file.
        address: of the view; {since} and {until} are the times of the run.
        size: of the browser, CSS pixels.
        dark: in dark colours.
        whole: all of the page, however high.
    """

    name: str
    address: str
    size: tuple[int, int] = (1280, 480)
    dark: bool = False
    whole: bool = True


VIEWS = [
    View("page.png", "#/"),
    View("page-job.png", f"#/job/{JOB}?range=all"),
    View("page-node.png", f"#/node/{NODES[0]}?from={{since}}&to={{until}}"),
    View("page-phone.png", f"#/job/{JOB}?range=all", (390, 2000), True, False),
]
TOP = "top collector --control-socket {folder}/collector.sock"
FIRST = [Picture("doctor.svg", "doctor --node --control-socket {folder}/node-1.sock", "node-1")]
LIVE = [
    Picture("top.svg", TOP, keys=[(9, "q")]),
    Picture("top-job.svg", f"{TOP} --job {JOB}", keys=[(20, "q")]),
]
STORED = [Picture("report.svg", f"report {JOB} --hdf5 {{folder}}/jobs")]


class Run:
    """The daemons and the jobs, with files in `folder`; `stack` ends them at its exit."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._log = stack.enter_context((folder / "daemons.log").open("w"))
        uri = f"tcp://127.0.0.1:{free_port()}"
        module = [sys.executable, "-m", "colmet.collector.main", "--zeromq-bind-uri", uri, "--buffer-size", "1"]
        module += ["--zeromq-curve-secret", ""]
        port = free_port()
        self.page = f"http://127.0.0.1:{port}/"
        files = ["--hdf5-filepath", f"{folder}/jobs", "--control-socket", f"{folder}/collector.sock"]
        files += ["--archive", f"{folder}/archive.sqlite", "--http-listen", str(port), "--http-open"]
        self._uri, self._daemons = uri, [self._start(HEAD, [*module, *files])]
        self._roots: list[JobRoot] = []
        self._jobs: list[tuple[JobRoot, LiveJob]] = []
        stack.callback(self.stop)

    def start_nodes(self, names: Sequence[str]) -> None:
        """Start a colmet-node for each name."""
        for name in names:
            root = JobRoot(f"colmet-pictures-{os.getpid()}-{name}", ("memory", "blkio", "pids"))
            self._stack.callback(root.close)
            self._roots.append(root)
            node = [sys.executable, "-m", "colmet.node.main", "-s", "1", "--zeromq-uri", self._uri, "--state-dir", ""]
            node += ["--spool-dir", f"{self._folder}/spool-{name}", "--cpuset_rootpath", str(root.path)]
            node += ["--control-socket", f"{self._folder}/{name}.sock", "--enable-jobproc"]
            self._daemons.append(self._start(name, node))

    def _start(self, host: str, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(named(host, command), stderr=self._log, text=True)

    def run_before(self) -> None:
        """Run the jobs that end before the others start."""
        jobs = [(root, root.job(name)) for root, name in zip(self._roots, BEFORE)]
        for (_, job), (count, share) in zip(jobs, BEFORE.values()):
            for _ in range(count):
                job.start([sys.executable, "-S", "-c", _BUSY, str(share)])
        self.wait(BEFORE_S)
        for root, job in jobs:
            root.end(job)

    def start_jobs(self) -> None:
        """Start the jobs, one of them on all nodes."""
        for (name, share, megabytes), root in zip((("1", 0.6, 480), ("2", 0.45, 300), ("3", 0.12, 60)), self._roots):
            job = root.job(f"alice_{JOB}")
            limit = Path("/sys/fs/cgroup/memory", *job.path.parts[-2:], "memory.limit_in_bytes")
            if limit.exists():
                limit.write_text(str(LIMIT_BYTES))
            job.start(
                [sys.executable, "-S", "-c", _SOLVE, str(share), str(megabytes), f"{self._folder}/written-{name}"]
            )
            self._jobs.append((root, job))
        other = self._roots[2].job(f"bob_{OTHER_JOB}")
        other.start(["/bin/sh", "-c", _SHORT])
        self._jobs.append((self._roots[2], other))

    def end_jobs(self) -> None:
        """End the jobs' processes, and remove their cgroups."""
        for root, job in self._jobs:
            root.end(job)

    def wait(self, seconds: float) -> None:
        """Wait while the daemons run; Failed if a daemon has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.5)
            if any(daemon.poll() is not None for daemon in self._daemons):
                raise Failed(f"a daemon ended:\n{(self._folder / 'daemons.log').read_text()}")

    def stop(self) -> None:
        """End the daemons, the collector last; may be called again."""
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=30)


def named(host: str, command: Sequence[str]) -> list[str]:
    """Return a command line to run a command under another host name."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host, *command]


def in_terminal(command: Sequence[str], keys: Sequence[tuple[float, str]] = ()) -> str:
    """Return a command's terminal output, with control sequences for colours, at its end, or before the last key.

    Each key is pressed after a delay in seconds.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown, waiting = b"", list(keys)
    press = time.monotonic() + (waiting[0][0] if waiting else 0)
    with contextlib.suppress(OSError):  # EIO after the follower's last close
        while True:
            if readable([leader], press - time.monotonic() if waiting else None):
                shown += os.read(leader, 65536)
            else:
                os.write(leader, waiting.pop(0)[1].encode())
                press = time.monotonic() + (waiting[0][0] if waiting else 0)
    os.close(leader)
    process.wait(timeout=30)
    text = shown.decode("utf-8", "replace").replace("\r\n", "\n").partition("\x1b[?1049l")[0]
    frames = [frame for frame in text.split("\x1b[H") if frame.strip()]  # of a full-screen program
    return frames[-1] if frames else ""


def terminal_svg(text: str, title: str) -> str:
    """Return text with a terminal's control sequences as a picture without external resources."""
    import rich.console
    import rich.text

    with open(os.devnull, "w") as nowhere:
        console = rich.console.Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(rich.text.Text.from_ansi(text.rstrip()))
        svg = console.export_svg(title=title, unique_id="colmet")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return "\n".join([line.rstrip() for line in svg.replace("Fira Code", "DejaVu Sans Mono").split("\n")])


def screenshot(page: Path, output: Path, width: int) -> None:
    """Take a picture of a page in a browser of this width; skip it without Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{output.name}: no Chromium here (apt-get install chromium)")
        return
    from PIL import Image, ImageChops

    with tempfile.TemporaryDirectory() as home:
        taken = Path(home, "taken.png")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={home}", f"--window-size={width},6000", f"--screenshot={taken}"]
        command.append(page.resolve().as_uri())
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(taken) as image:
            plain = image.convert("RGB")
    edge = Image.new("RGB", plain.size, plain.getpixel((plain.width - 1, plain.height - 1)))
    box = ImageChops.difference(plain, edge).getbbox()
    bottom = min(plain.height, box[3] + 24) if box else plain.height
    plain.crop((0, 0, plain.width, bottom)).quantize(PALETTE).save(output, optimize=True)


def take_page(address: str, output: Path) -> None:
    """Make the pictures of the page; skip them without Chromium."""
    browser = shutil.which("chromium")
    if browser is None:
        print("page*.png: no Chromium here (apt-get install chromium)")
        return
    with tempfile.TemporaryDirectory() as home, Chromium(browser, home) as chromium:
        for view in VIEWS:
            with chromium.page(*view.size, view.dark, phone=view.size[0] < 600) as page:
                until = int(time.time())
                page.open(address + view.address.format(since=until - SHOWN_S, until=until))
                page.wait("document.querySelector('.rows tr, .chart canvas') && !document.querySelector('.plot p')", 60)
                time.sleep(3)  # the report comes after the charts
                (output / view.name).write_bytes(page.picture(view.whole))
            shrink(output / view.name, 160)


def shrink(path: Path, colours: int = PALETTE) -> None:
    """Reduce the file size of a picture of few colours."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(colours).save(path, optimize=True)


def colmet(arguments: str) -> list[str]:
    """Return the command line of a subcommand."""
    return [sys.executable, "-m", "colmet.commands.colmet", *arguments.split()]


def take(pictures: Sequence[Picture], folder: Path, output: Path) -> None:
    """Make the pictures of terminals."""
    for one in pictures:
        title = " ".join(["colmet", *[word for word in one.command.split() if "{folder}" not in word]])
        title = re.sub(r" --(hdf5|control-socket)\b", "", title)
        text = in_terminal(named(one.host, colmet(one.command.format(folder=folder))), one.keys)
        for machine, plain in ((str(folder), "/var/lib/colmet"), (KERNEL, KERNEL.partition("-")[0])):
            text = text.replace(machine, plain)
        (output / one.name).write_text(terminal_svg(text, title), encoding="utf-8")


def make(folder: Path, output: Path, stack: contextlib.ExitStack) -> None:
    """Run the jobs and make all pictures; Failed without root or cgroups, or if a daemon ends."""
    run = Run(folder, stack)
    run.start_nodes(NODES[:1])
    run.wait(8)
    take(FIRST, folder, output)
    run.start_nodes(NODES[1:])
    run.wait(4)
    run.run_before()
    run.start_jobs()
    run.wait(LIVE_S)
    take(LIVE, folder, output)
    take_page(run.page, output)
    run.wait(REST_S)
    run.end_jobs()
    run.wait(4)
    run.stop()
    draw(folder, output)


def draw(folder: Path, output: Path) -> None:
    """Make the pictures of stored data."""
    take(STORED, folder, output)
    plot = f"plot {JOB} cpu_usage memory_current io_write_bytes --hdf5 {folder}/jobs --output {output / 'plot.svg'}"
    subprocess.run(colmet(plot), check=True, env={**os.environ, "TZ": "UTC"})
    page = folder / "report.html"
    for option in (f"--html {page}", f"--png {output / 'report.png'}"):
        subprocess.run(colmet(f"report {JOB} --hdf5 {folder}/jobs {option}"), check=True, stdout=subprocess.DEVNULL)
    shrink(output / "report.png")
    screenshot(page, output / "report-page.png", 1280)
    screenshot(page, output / "report-phone.png", 390)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``make docs-pictures``; return the exit status."""
    parser = argparse.ArgumentParser(prog="make docs-pictures", description=__doc__)
    parser.add_argument("output", type=Path, help="directory of the pictures")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep what the run has stored here")
    parser.add_argument(
        "--from", metavar="DIR", dest="kept", type=Path, help="no run: of what an earlier one has stored"
    )
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colmet-pictures-")))
        try:
            if options.kept:
                draw(options.kept, options.output)
            else:
                make(folder, options.output, stack)
        except (Failed, subprocess.SubprocessError, OSError) as err:
            print(f"docs-pictures: {err}", file=sys.stderr)
            return 1
        if options.keep:
            shutil.copytree(folder, options.keep, ignore=shutil.ignore_patterns("*.sock", "written-*"))
    large = [path.name for path in options.output.iterdir() if path.stat().st_size > MAX_BYTES]
    if large:
        print(f"docs-pictures: larger than {MAX_BYTES // 1000} kB: {', '.join(large)}", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
