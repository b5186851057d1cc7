"""Make the Python environment of the RPM packages, and a list of the files of each package.

usage: environment.py BUILDROOT HOME WHEELS

The environment is made in BUILDROOT for the directory HOME, of the wheels in the directory WHEELS alone. NAME.files in
the current directory has the lines of ``%files`` of the package colmet-NAME: the modules that it alone requires. A
module that several require is in colmet-common, with the program itself.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

REQUIREMENTS = {
    "common": ("msgpack", "numpy", "pyzmq", "requests", "rich", 'tomli; python_version < "3.11"'),
    "node": ("pyinotify", 'pyasyncore; python_version >= "3.12"', "nvidia-ml-py"),
    "collector": ("tables", "fastapi", "uvicorn"),
    "facility": ("kubernetes", "psutil"),
    "tools": ("matplotlib", "pyarrow"),
}
# for people who add modules, or build
UNUSED = ("bin/[aA]ctivate*", "bin/pip*", "{site}/pip", "{site}/pip-*", "{site}/colmet/node/backends/lib_*/*[!o]")


class Environment:
    """A virtual environment in a build root.

    Args:
        root: the build root.
        home: where the environment is once it is installed.
        wheels: the directory of all wheels.
    """

    def __init__(self, root: Path, home: str, wheels: Path) -> None:
        self._root = root
        self._path = root / home.lstrip("/")
        subprocess.run([sys.executable, "-m", "venv", str(self._path)], check=True)
        (self._site,) = self._path.glob("lib/python3*/site-packages")
        (colmet,) = wheels.glob("colmet-*.whl")
        self._pip("install", "-q", "--no-compile", "--no-index", "--find-links", str(wheels), str(colmet))
        self._pip("install", "-q", "--no-compile", "--no-index", "--find-links", str(wheels), *_all())
        self._pip("check")

    def _pip(self, *arguments: str) -> None:
        subprocess.run([str(self._path / "bin/pip"), "--disable-pip-version-check", *arguments], check=True)

    def packages(self) -> dict[Path, str]:
        """Return which package each file of a module belongs to."""
        sys.path.insert(0, str(self._site))
        requirement = importlib.import_module("pip._vendor.packaging.requirements").Requirement
        there = {_plain(one.metadata["Name"]): one for one in distributions(path=[str(self._site)])}
        users = defaultdict(set)
        for package, texts in REQUIREMENTS.items():
            waiting = list(texts)
            while waiting:
                wanted = requirement(waiting.pop())
                name = _plain(wanted.name)
                if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and package not in users[name]:
                    users[name].add(package)
                    waiting += there[name].requires or ()
        owners = {name: packages.copy().pop() for name, packages in users.items() if len(packages) == 1}
        return {path: owners.get(name, "common") for name, one in there.items() for path in _files(one)}

    def finish(self) -> None:
        """Remove what nobody uses, compile the modules, and name the place after the installation."""
        freeze = [str(self._path / "bin/pip"), "--disable-pip-version-check", "list", "--format", "freeze"]
        (self._path / "MODULES").write_bytes(subprocess.run(freeze, check=True, stdout=subprocess.PIPE).stdout)
        for pattern in UNUSED:
            for path in self._path.glob(pattern.format(site=self._site.relative_to(self._path))):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self._path / "pyvenv.cfg").write_text((self._path / "pyvenv.cfg").read_text().replace(str(self._root), ""))
        for path in (self._path / "bin").iterdir():
            if not path.is_symlink():
                path.write_text(path.read_text().replace(str(self._root), ""))
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        # what is no Python of this version, in the tests of a module, is no failure
        command += ["-s", str(self._root), "-p", "/", str(self._site)]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)

    def lists(self, packages: dict[Path, str]) -> dict[str, list[str]]:
        """Return the lines of ``%files`` of each package: its files, and the directories that these are in."""
        found = defaultdict(set)
        for path in _walk(self._path):
            source = path
            if path.suffix == ".pyc":
                source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
            package = packages.get(source, "common")
            found[package].add(f'"/{path.relative_to(self._root)}"')
            for parent in path.relative_to(self._path).parents:
                found[package].add(f'%dir "/{(self._path / parent).relative_to(self._root)}"')
        return {package: sorted(lines) for package, lines in found.items()}


def _all() -> list[str]:
    return [text for texts in REQUIREMENTS.values() for text in texts]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _files(distribution: Distribution) -> Iterator[Path]:
    for one in distribution.files or ():
        yield Path(os.path.normpath(str(distribution.locate_file(one))))


def _walk(path: Path) -> Iterator[Path]:
    """Yield all that is no directory."""
    for one in path.iterdir():
        if one.is_dir() and not one.is_symlink():
            yield from _walk(one)
        else:
            yield one


def main(argv: Sequence[str]) -> int:
    """Make all; return the exit status."""
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    environment = Environment(Path(argv[0]).resolve(), argv[1], Path(argv[2]).resolve())
    packages = environment.packages()
    environment.finish()
    for package, lines in environment.lists(packages).items():
        Path(f"{package}.files").write_text("".join([f"{line}\n" for line in lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
