#!/bin/bash
# Writes packaging/constraints.txt and packaging/pip.txt: the newest versions of all that Colmet requires at run time, and
# of what builds and installs it, for all Pythons from 3.9 on, each with the hashes of its files.
#
# usage: pin-requirements.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -x .venvs/uv/bin/uv ]] || "$1" -m venv .venvs/uv
.venvs/uv/bin/pip install -q --upgrade uv

pin() { # OUTPUT, requirements on standard input
    { echo "# Made by \`make constraints\`; docs/security.md says how it is used."
      .venvs/uv/bin/uv pip compile -q --no-config --universal --python-version 3.9 --generate-hashes --no-header --no-annotate -
    } >"$1.new"
    mv "$1.new" "$1"
}
{ cat requirements.txt requirements-{web,tools,facility}.txt; echo "nvidia-ml-py"; echo "setuptools>=61"; } |
    pin packaging/constraints.txt
echo "pip>=26" | pin packaging/pip.txt
