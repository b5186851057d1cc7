#!/bin/bash
# Runs the tests on every supported Python that this machine has, or that Debian's packages give, each in its own
# .venvs/VERSION. Prints what failed and a line for each run; the output of pytest is in .venvs/VERSION.log.
#
# Tests marked slow run on one Python alone, the first or SLOW: what differs between Pythons shows in the others. They
# mostly wait, so they run beside the others.
#
# usage: [VERSIONS="3.15 3.9"] [SLOW=3.15] [WORKERS=3] test-all.sh [PYTEST ARGUMENT...]
set -euo pipefail
shopt -s extglob nullglob
cd "$(dirname "$0")/.."
source scripts/running.sh

read -ra versions <<<"${VERSIONS:-3.15 3.9 3.10 3.11 3.12 3.13 3.14}"
slow=${SLOW:-${versions[0]}}
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

need_tools &
found=()
absent=()
for version in "${versions[@]}" $([[ " ${versions[*]} " == *" $slow "* ]] || echo "$slow"); do
    if python=$(find_python "$version" || scripts/python-of-debian.sh "$version" ".venvs/debian-$version"); then
        found+=("$version")
        { scripts/bootstrap.sh ".venvs/$version" "$python" && warm ".venvs/$version/bin/python"; } &
    else
        absent+=("$version")
    fi
done
[[ ${#found[@]} -gt 0 ]] || { echo "no supported Python found" >&2; exit 1; }
wait
for version in "${found[@]}"; do
    .venvs/"$version"/bin/python -c 'import pytest' || { echo "Python $version could not be set up" >&2; exit 1; }
done

# run NAME VERSION MARKERS [PYTEST_ARGUMENT...]
run() { start "$1" ".venvs/$2/bin/python" "${parallel[@]}" --durations=30 -m "$3" "${@:4}"; }

[[ " ${found[*]} " == *" $slow "* ]] || slow=${found[0]}
quick=()
for version in "${found[@]}"; do [[ " ${versions[*]} " != *" $version "* ]] || quick+=("$version"); done
paths=("$@")
[[ $asked_for -gt 0 ]] || mapfile -t paths < <(grep -lr --include='test_*.py' --exclude-dir=beds 'mark\.slow' tests)
run "$slow.slow" "$slow" "slow" "${paths[@]}" &
for version in "${quick[@]}"; do
    run "$version" "$version" "not slow" "$@"
    again "$version"
done
wait
again "$slow.slow"
failed=0
sum_up "${quick[@]}" "$slow.slow" || failed=1
[[ ${#absent[@]} -eq 0 ]] || echo "not found on this machine: ${absent[*]}"
exit "$failed"
