#!/bin/bash
# Runs the tests on every supported Python that this machine has or can have of Debian's packages, each in its own .venvs/VERSION, and prints what went
# wrong and a line for each run; all that pytest said is in .venvs/VERSION.log, VERSION.alone.log and VERSION.slow.log.
#
# Tests marked live go by this machine's clock and kernel: they run alone, on the first Python, and those of whole
# programs on the second, too. The others run on all, as many runs at once as there are CPUs and one more. Those marked
# slow are a run of their own, on the first Python: what differs between the newest and the oldest Python shows on the
# first two, and the rest of the code on each one between.
#
# usage: [VERSIONS="3.15 3.9"] [AT_ONCE=1] test-all.sh [PYTEST ARGUMENT...]
set -euo pipefail
shopt -s extglob nullglob
cd "$(dirname "$0")/.."
source scripts/running.sh

programs=(tests/test_daemons.py tests/test_link_daemons.py tests/test_once.py tests/test_reload.py)
read -ra versions <<<"${VERSIONS:-3.15 3.9 3.10 3.11 3.12 3.13 3.14}"
asked_for=$#

# Prints the path of a Python of this version. Each candidate has to run: a shim of pyenv exists for versions that
# are not active too.
find_python() {
    local version=$1 pyenv=${PYENV_ROOT:-${HOME:-/root}/.pyenv} candidate
    local candidates=()
    mapfile -t candidates < <(type -aP "python$version")
    # newest patch first; "3.13.0t", without the GIL, is another thing
    mapfile -t -O "${#candidates[@]}" candidates < <(
        printf '%s\n' "$pyenv/versions/$version".+([0-9])/bin/"python$version" | sort -Vr)
    for candidate in "${candidates[@]}"; do
        "$candidate" -c "
import sys
if '%d.%d' % sys.version_info[:2] != '$version':
    sys.exit(1)
print(sys.executable)" 2>/dev/null && return
    done
    return 1
}

# tests MARKED VERSION NAME [PYTEST_ARGUMENT...]
tests() { start "$3" ".venvs/$2/bin/python" -m "$1" "${@:4}"; }

found=()
absent=()
for version in "${versions[@]}"; do
    if python=$(find_python "$version" || scripts/python-of-debian.sh "$version" ".venvs/debian-$version"); then
        found+=("$version")
        beside scripts/bootstrap.sh ".venvs/$version" "$python"
    else
        absent+=("$version")
    fi
done
[[ ${#found[@]} -gt 0 ]] || { echo "no supported Python found" >&2; exit 1; }
wait
for version in "${found[@]}"; do
    .venvs/"$version"/bin/python -c 'import pytest' || { echo "Python $version could not be set up" >&2; exit 1; }
done

first=${found[0]} names=("${found[0]}.alone")
tests live "$first" "$first.alone" "$@"
for version in "${found[@]:1:1}"; do
    names+=("$version.alone")
    [[ $# -gt 0 ]] && chosen=("$@") || chosen=("${programs[@]}")
    tests "live and not slow" "$version" "$version.alone" "${chosen[@]}"
done
beside tests "slow and not live" "$first" "$first.slow" "$@"
for version in "${found[@]}"; do
    beside tests "not live and not slow" "$version" "$version" "$@"
done
wait
names+=("$first.slow" "${found[@]}")
for name in "${names[@]}"; do again "$name"; done
failed=0
sum_up "${names[@]}" || failed=1
[[ ${#absent[@]} -eq 0 ]] || echo "not found on this machine: ${absent[*]}"
exit "$failed"
