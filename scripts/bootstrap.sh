#!/bin/bash
# Makes the virtual environment DIR: Colmet itself (editable, with its console scripts), what it needs and what
# its tests need. Does nothing while the environment is up to date; what pip said is in DIR/setup.log.
#
# usage: bootstrap.sh DIR PYTHON
set -euo pipefail
export LC_ALL=C.UTF-8 # the order of names is part of the stamp below
cd "$(dirname "$0")/.."
dir=$1
python=$2
[[ -e /proc/self/fd && -e /dev/null ]] || { echo "setup: mount /proc, /sys and /dev in this root first: mount --rbind /proc ROOT/proc ..." >&2; exit 1; }

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

if ! command -v "$python" >/dev/null; then
    [[ $python == python3 ]] || die "there is no command $python; choose a Python with PYTHON=..."
    scripts/need.sh python3 python3-venv
fi
# in words that Python 2 can run too, so that it is refused for its age
about=$("$python" -c '
import sys
v = sys.version_info
print("%d.%d.%d %d python%d.%d %s" % (v[0], v[1], v[2], v >= (3, 9), v[0], v[1], getattr(sys, "base_prefix", "-")))
' 2>&1) || die "$python does not run ($about); choose another Python with PYTHON=..."
read -r version new_enough name prefix <<<"$about"
[[ $new_enough == 1 ]] || die "$python is Python $version and Colmet needs 3.9 or newer; choose another with PYTHON=..."

# Two runs at once (two terminals, say) would build the same directory: the second waits.
mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9

# Not the files' times, which git does not keep: their content, and all else that the environment depends on.
stamp=$(cat requirements*.txt setup.py scripts/bootstrap.sh <(sed '/^\[tool\.ruff/,$d' pyproject.toml) <(echo "$version $prefix $PWD") | sha256sum)
if [[ $(cat "$dir/setup.stamp" 2>/dev/null) == "$stamp" ]] && "$dir/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

can_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
if ! can_venv; then
    [[ $prefix == /usr ]] || die "$python ($prefix) has no venv and ensurepip; choose another Python with PYTHON=..."
    # python3-venv belongs to Debian's default Python alone
    [[ $(readlink -f /usr/bin/python3) != */"$name" ]] || name=python3
    scripts/need.sh "$name-venv" 9<&-
    can_venv || die "$python still has no venv and ensurepip; choose another Python with PYTHON=..."
fi

say "making $dir with Python $version"
said=$("$python" -m venv --clear "$dir" 2>&1) || die "$python -m venv --clear $PWD/$dir failed: $said"

log=$dir/setup.log
pip() { "$dir/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1 </dev/null; }
say "installing what Colmet and its tests need (a minute; $log)"
# Colmet's own installation builds in its source: one at a time.
own() { exec 8<scripts/bootstrap.sh && flock 8 && "$@" --no-deps -e .; }
# uv needs a tenth of pip's time.
by_uv() {
    pip install uv || return
    uv() { "$dir/bin/uv" pip install --native-tls --python "$dir/bin/python" "$@" >>"$log" 2>&1 </dev/null; }
    uv -r requirements.txt -r requirements-test.txt && own uv
}
# pip has the site's index and proxy. pip 23: editable installs by pyproject.toml. --use-pep517: pyinotify, a source
# package, without a warning. --no-compile: less than half of it is imported, and compiled then.
by_pip() {
    pip install 'pip>=23' && pip install --no-compile --use-pep517 -r requirements.txt -r requirements-test.txt &&
        own pip install --use-pep517
}
if ! by_uv && ! by_pip; then
    { grep '^ *ERROR: ' "$log" || tail -n 12 "$log"; } | tail -n 6 >&2
    die "pip failed (no network, or no package for this machine?); all it said is in $dir/setup.log"
fi
echo "$stamp" >"$dir/setup.stamp"
