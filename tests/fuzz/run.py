"""Fuzz one decoder, guided by what of the code an input reaches: `make fuzz ARGS="v1 --seconds 600"`.

A target is a module `fuzz_NAME` with `SEEDS`, `one(data)`, which lets no exception through but for a finding, and
`MAX_BYTES` where its inputs are long. What is learnt is kept in .fuzz/NAME; with --keep the smallest part of it that
reaches the same code goes to corpus/NAME, which the tests replay.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEARNT = ROOT / ".fuzz"
NAMES = sorted([path.stem[len("fuzz_") :] for path in HERE.glob("fuzz_*.py")])
KEPT_BYTES = 16_000  # of a target, in the repository
MOST_MIB = 2048  # of memory
# The counters that atheris puts into the code keep some of what they see (0.1 to 3 kB an input, 3.1.0 and Python 3.12;
# none of it is ours), so that a process is not to live long.
ROUND_S = 90


def build_parser():
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="only keep what was learnt before")
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def fuzz(name, arguments):
    """Run libFuzzer with its own arguments; it ends the process."""
    import atheris

    sys.path[:0] = [str(HERE), str(ROOT)]
    # a parser in Python can be followed, one in C cannot: msgpack's is Python where MSGPACK_PUREPYTHON is set
    for module in ("json", "json.decoder", "json.scanner", "json.encoder", "_json"):
        sys.modules.pop(module, None)
    sys.modules["_json"] = None
    with atheris.instrument_imports(include=["colmet", "msgpack", "json", "tomllib"]):
        target = importlib.import_module(f"fuzz_{name}")
    logging.disable()  # what is said of bad input would be most of the work
    # a merge has a shell start this again, by what is given as its name
    atheris.Setup([shlex.join([sys.executable, __file__, name, "--inside"]), *arguments], target.one)
    atheris.Fuzz()


def start(name, *arguments):
    """The same in a process of its own; its exit status."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{ROOT}"}
    command = [sys.executable, __file__, name, "--inside", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def merged(name, into, *sources):
    """Have the inputs of `sources` that reach something new in `into`."""
    return start(name, "-merge=1", f"-rss_limit_mb={MOST_MIB}", str(into), *[str(path) for path in sources])


def keep(name, learnt):
    """Replace what is kept for the tests, but for what was found: these files begin with `found`."""
    corpus = HERE / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for path in corpus.iterdir():
        if not path.name.startswith("found"):
            path.unlink()
    room = KEPT_BYTES
    with tempfile.TemporaryDirectory() as least:
        if merged(name, least, learnt):
            return 1
        for path in sorted(Path(least).iterdir(), key=lambda path: path.stat().st_size):
            room -= path.stat().st_size
            if room < 0:
                break
            (corpus / path.name[:12]).write_bytes(path.read_bytes())
    return 0


def main():
    options = build_parser().parse_args()
    if options.inside is not None:
        fuzz(options.name, options.inside)
    learnt = LEARNT / options.name
    learnt.mkdir(parents=True, exist_ok=True)
    if options.keep:
        return keep(options.name, learnt)
    sys.path[:0] = [str(HERE), str(ROOT)]
    target = importlib.import_module(f"fuzz_{options.name}")
    with tempfile.TemporaryDirectory() as seeds:
        for n, seed in enumerate(target.SEEDS):
            (Path(seeds) / str(n)).write_bytes(seed)
        for done_s in range(0, options.seconds, ROUND_S):
            status = start(
                options.name,
                f"-max_total_time={min(ROUND_S, options.seconds - done_s)}",
                f"-max_len={getattr(target, 'MAX_BYTES', 4096)}",
                f"-rss_limit_mb={MOST_MIB}",
                "-timeout=20",
                "-print_final_stats=1",
                f"-artifact_prefix={LEARNT}/{options.name}-",
                str(learnt),
                *[str(path) for path in (Path(seeds), HERE / "corpus" / options.name) if path.is_dir()],
            )
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
