"""Programs of batch systems that are not there: scripts that check their arguments and print what was recorded."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

DATA = Path(__file__).parents[1] / "data/batch"
# The mark of a question to Slurm: of its environment, or an argument.
_MARK = (
    'mark="${SQUEUE_FORMAT#%?}"; mark="${mark%%%*}"; '
    'for one; do case $one in --delimiter=*) mark="${one#*=}";; esac; done'
)
WRONG = 64  # how a script ends that is asked for something else


class Commands:
    """A folder of such scripts, which is all of PATH but what they need themselves.

    Args:
        directory: where they are.
        monkeypatch: that sets PATH.
    """

    def __init__(self, directory, monkeypatch):
        self.directory = directory
        self._cases = {}
        directory.mkdir()
        for program in ("sh", "cat", "sleep", "sed"):
            (directory / program).symlink_to(Path("/bin") / program)
        monkeypatch.setenv("PATH", str(directory))

    def answers(self, command, text="", status=0, said="", slow_s=0):
        """Have a command print something.

        Args:
            command: program and arguments; with None among them, they may be anything.
            text: what it prints, or the file of it; a list of records, each a list of fields, is printed as squeue and
                sacct print it, each field with the mark that is asked for.
            status: that it ends with.
            said: what it prints to standard error.
            slow_s: seconds before it prints.
        """
        program, *arguments = command
        pattern = "*" if None in arguments else shlex.quote(" ".join(arguments))
        path = (
            text if isinstance(text, Path) else self.directory / f"answer-{program}-{len(os.listdir(self.directory))}"
        )
        show = f"cat {shlex.quote(str(path))}"
        if isinstance(text, list):
            text = "".join(["".join([field + "\x01" for field in fields]) + "\n" for fields in text])
            show = f'{_MARK}; sed "s/\x01/$mark/g" {shlex.quote(str(path))}'
        if path is not text:
            path.write_bytes(text.encode())
        lines = [show, f"printf %s {shlex.quote(said)} >&2", f"exit {status}"]
        lines = [f"sleep {slow_s}", *lines] if slow_s else lines
        cases = self._cases.setdefault(program, {})
        cases.pop(pattern, None)
        cases[pattern] = "; ".join(lines)
        script = self.directory / f"{program}.new"  # the former one may be starting
        script.write_text(
            "#!/bin/sh\n"
            f'printf "%s\\n" "$*" >>{shlex.quote(str(self.directory / program))}.asked\n'
            'case "$*" in\n'
            + "".join(f"{pattern}) {lines};;\n" for pattern, lines in cases.items())
            + f'*) echo "not expected: $*" >&2; exit {WRONG};;\nesac\n'
        )
        script.chmod(0o755)
        script.rename(self.directory / program)

    def asked(self, program):
        """The arguments of every call so far."""
        path = self.directory / f"{program}.asked"
        return path.read_text().splitlines() if path.exists() else []


def commands_of(bed, names, directory, monkeypatch, **environment):
    """Have the commands of these names be those of a bed of tests/beds; see `scripts_of`."""
    monkeypatch.setenv("PATH", scripts_of(bed, names, directory, **environment))


def scripts_of(bed, names, directory, **environment):
    """Write scripts that run commands as a bed of tests/beds has them in its own namespace, once it is up.

    Args:
        bed: the bed.
        names: of commands.
        directory: for the scripts.
        environment: of the commands.

    Returns:
        PATH with these scripts first.
    """
    directory.mkdir()
    given = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())
    inside = f'nsenter --target "$(cat {shlex.quote(str(bed.directory / "ns.pid"))})" --net --mount --'
    for name in names:
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {inside} env PATH=/usr/sbin:/usr/bin:/sbin:/bin {given} {name} "$@"\n')
        script.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"
