#!/bin/bash
# Builds the source distribution of this tree in DIR: the same bytes wherever and whenever it is built. The output of the
# build is in DIR/build-sdist.log.
#
# usage: build-sdist.sh DIR [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/building.sh
when=${SOURCE_DATE_EPOCH:-$(source_time)}
python=${2:-python3}

"$python" -c 'import ensurepip, venv' 2>/dev/null || scripts/need.sh python3-venv
mkdir -p "$1"
dir=$(cd "$1" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
copy_source "$work/colmet" # the build writes into it
{
    "$work/venv/bin/pip" install --disable-pip-version-check 'setuptools>=66' &&
        cd "$work/colmet" &&
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
