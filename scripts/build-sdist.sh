#!/bin/bash
# Builds the source distribution of this tree in DIR: the same bytes wherever and whenever it is built. The output of the
# build is in DIR/build-sdist.log.
#
# usage: build-sdist.sh DIR [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
when=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${2:-python3}

"$python" -c 'import ensurepip, venv' 2>/dev/null || scripts/need.sh python3-venv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
{
    "$work/venv/bin/pip" install --disable-pip-version-check 'setuptools>=66' &&
        "$work/venv/bin/python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$work"
} >"$dir/build-sdist.log" 2>&1 </dev/null || {
    tail -n 20 "$dir/build-sdist.log" >&2
    echo "build-sdist: failed; the output is in $dir/build-sdist.log" >&2
    exit 1
}
rm -f "$dir"/colmet-*.tar.gz
made=$(basename "$work"/colmet-*.tar.gz)
mkdir "$work/tree"
tar -xzf "$work/$made" -C "$work/tree"
tar -C "$work/tree" --sort=name --mtime="@$when" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w --format=gnu \
    -c "${made%.tar.gz}" | gzip -n9 >"$dir/$made"
ls "$dir"/colmet-*.tar.gz
