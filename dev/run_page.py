"""Run the commands of a page to the letter, and compare what they print: ``python -m dev.run_page PAGE``, as root.

The commands are the blocks that begin with ```` ```sh run ````, run in their order by one shell in a temporary root
directory: a writable layer over this machine, without files of Colmet, and with a host name of its own. The block
``text`` right after a block of commands has their output. ``--write`` writes the real output into the page.

The rule for the comparison: digits, the lengths of bars, and spaces between words may differ; words, columns, units
and the order of lines may not. A duration is one number, in s or in min and s. Only lines of
`OPTIONAL` may be missing, as reports show no waits of 0. A line ``...`` stands for any lines. A single command of
`QUERIES` is repeated until its output is as expected: a reader waits, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dev.live import Failed, free_port

SOURCE = Path(__file__).resolve().parents[1]
HOST = "node-1"
PATIENCE_S, BETWEEN_S = 30.0, 0.5  # of a query
LONGEST_S = 60.0  # of one block
QUERIES = re.compile(r"(echo secret \| )?colmet (completeness|jobs|login|notices|report|status|top|usage)[^\n]*\n")
OPTIONAL = re.compile(
    r"N % (waiting for a CPU|block I/O|swap|reclaim) N s$|The stored waits for .* are left out|"
    r"waited \(seen of Linux|one name\)\.$"
)
ANY = "..."  # a line of the page that stands for any lines
PORTS = ("5556", "8080")  # of the page: others may use these
_BLOCK = re.compile(r"^```sh run\n(?P<commands>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S)
# Arguments: the folder, the source, the host's name, then the prefixes of Python that are elsewhere.
_ROOT = r"""
folder=$1 source=$2 name=$3
shift 3
mkdir "$folder"/{upper,work,root,upper-source,work-source}
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
mkdir -p "$folder/root$source"
mount -t overlay overlay -o "lowerdir=$source,upperdir=$folder/upper-source,workdir=$folder/work-source" \
    "$folder/root$source"
for directory in /proc /sys /dev "$@"; do
    mkdir -p "$folder/root$directory"
    mount --rbind "$directory" "$folder/root$directory"
done
rm -rf "$folder"/root/{etc,run,var/lib,var/spool}/colmet* "$folder/root/root/.config/colmet"
hostname "$name"
exec chroot "$folder/root" sh -c 'cd "$1" && exec bash --norc' sh "$source"
"""


class Block(NamedTuple):
    """A block of commands; `output` is None where the page shows none."""

    commands: str
    output: str | None


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page to run."""
    return [Block(match["commands"], match["output"]) for match in _BLOCK.finditer(page)]


def plain(text: str) -> list[str]:
    """Return lines of output without what may differ from one run to the next."""
    masked = re.sub(r"\d+(?:[.,:]\d+)*", "N", re.sub("[█░]+", "BAR", re.sub(r"\.dev\d+", "", text)))
    masked = re.sub(r"N (?:d|h|min) N (?:h|min|s)\b", "N s", re.sub(r"(?:< |over )?N %", "N %", masked))
    # What is read from storage depends on the memory that the machine has left for its cache.
    masked = re.sub(r"storage: read N \w+, written", "storage: written", masked)
    # The last reading of a job may come while its memory is being freed.
    masked = re.sub(r"(without page cache N \w+), at last N \w+", r"\1", masked)
    # Netlink's calls of a short task are cut to 0.
    masked = re.sub(r"(programs (?:read|wrote) N \w+) in N calls", r"\1", masked)
    lines = [re.sub(r"\s+", " ", line).strip() for line in masked.splitlines()]
    return [line for line in lines if not OPTIONAL.search(line)]


def agrees(expected: str, actual: str) -> bool:
    """Return whether an output is the expected one, but for what may differ."""
    pattern = "".join("(?:.*\n)*?" if line == ANY else re.escape(line) + "\n" for line in plain(expected))
    return re.fullmatch(pattern, "".join([f"{line}\n" for line in plain(actual)])) is not None


class Shell:
    """A bash in the temporary root directory, as root.

    Args:
        folder: an empty one, on a disk, for what is written.

    Raises:
        Failed: the directory cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        prefixes = {sys.prefix, sys.base_prefix} - {"/usr"}
        elsewhere = sorted(prefix for prefix in prefixes if SOURCE not in Path(prefix).parents)
        # the environment of this Python stands for the one that the page activates
        path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        command = ["unshare", "--mount", "--uts", "--propagation", "private", "bash", "-e", "-c", _ROOT, "root"]
        self._process = subprocess.Popen(
            [*command, str(folder), str(SOURCE), HOST, *elsewhere],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"},
        )  # fmt: skip
        try:
            self.run("set -E; trap 'failed=$?' ERR\n")
        except Failed:
            self.close()
            raise

    def run(self, commands: str) -> str:
        """Run commands; return what they and the programs in the background print meanwhile.

        Raises:
            Failed: one of them failed, or they did not end in time.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        end = f"-- end {time.monotonic_ns()} --"
        script = (
            f"cat > /block.sh <<'{end}'\n{commands}{end}\nfailed=0; . /block.sh < /dev/null; echo '{end}' $failed\n"
        )
        with contextlib.suppress(BrokenPipeError):  # its last words are read below
            self._process.stdin.write(script.encode())
            self._process.stdin.flush()
        text, until = b"", time.monotonic() + LONGEST_S
        while not (ended := re.search(rf"{end} (\d+)\n".encode(), text)):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            some = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            text += some
            if not some:
                why = "did not end" if not ready else "ended the shell"
                raise Failed(f"these commands {why}:\n{commands}{text.decode()}")
        shown = text[: ended.start()].decode()
        if int(ended[1]):
            raise Failed(f"exit status {int(ended[1])}:\n{commands}{shown}")
        return shown

    def close(self) -> None:
        """End the shell and all that it started; may be called again."""
        assert self._process.stdin is not None and self._process.stdout is not None
        for number, patience_s in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):  # a job removes its cgroups at SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            until = time.monotonic() + patience_s
            while time.monotonic() < until and _is_group(self._process.pid):
                self._process.poll()
                time.sleep(0.05)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()


def _is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def delay_accounting_as_it_is() -> Iterator[None]:
    """Leave kernel.task_delayacct as it was: it is one for the machine."""
    setting = Path("/proc/sys/kernel/task_delayacct")
    before = setting.read_text()
    try:
        yield
    finally:
        setting.write_text(before)


def run_blocks(blocks: Sequence[Block], folder: Path, check: bool = True) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in `folder`; yield each with its output.

    Args:
        blocks: of one page.
        folder: an empty one, on a disk.
        check: whether to fail at an output that does not agree with the page's.

    Raises:
        Failed: a command failed, or printed another output.
    """
    ports = {port: str(free_port()) for port in PORTS}
    with delay_accounting_as_it_is(), contextlib.closing(Shell(folder)) as shell:
        for block in blocks:
            commands = re.sub("|".join(PORTS), lambda found: ports[found[0]], block.commands)
            until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    output, failure = shell.run(commands), ""
                except Failed as err:
                    output, failure = "", str(err)
                good = not failure and (block.output is None or agrees(block.output, output))
                if good or not QUERIES.fullmatch(block.commands) or time.monotonic() > until:
                    break
                time.sleep(BETWEEN_S)
            if failure:
                raise Failed(failure)
            if check and not good:
                raise Failed(f"{block.commands}printed\n{output}and not\n{block.output}")
            for port, other in ports.items():
                output = output.replace(other, port)
            yield block, output


def write_outputs(path: Path, folder: Path) -> None:
    """Write the real outputs of its commands into a page, up to one that fails; an output with ``...`` is kept.

    Raises:
        Failed: a command failed.
    """
    page = path.read_text(encoding="utf-8")
    for block, output in run_blocks(blocks_of(page), folder, check=False):
        if block.output is not None and not (ANY in plain(block.output) and agrees(block.output, output)):
            start = f"```sh run\n{block.commands}```\n\n```text\n"
            page = page.replace(f"{start}{block.output}```\n", f"{start}{output}```\n")
            path.write_text(page, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m dev.run_page``; return 0, or 1 where a command failed or printed another output."""
    parser = argparse.ArgumentParser(prog="python -m dev.run_page", description=__doc__)
    parser.add_argument("page", type=Path, help="a page in Markdown")
    parser.add_argument("--write", action="store_true", help="write the real output into the page")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        try:
            if options.write:
                write_outputs(options.page, Path(folder))
            else:
                for block, output in run_blocks(blocks_of(options.page.read_text(encoding="utf-8")), Path(folder)):
                    print(f"{block.commands}{output}", flush=True)
        except Failed as err:
            print(f"run_page: {err}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
