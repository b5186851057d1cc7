#!/bin/bash
# Runs the tests on every supported Python that this machine has, one after the other (some tests measure time),
# each in its own .venvs/VERSION, and prints a line for each. What is marked slow runs on the first alone.
#
# usage: [VERSIONS="3.9 3.13"] test-all.sh [PYTEST ARGUMENT...]
set -euo pipefail
shopt -s extglob nullglob
cd "$(dirname "$0")/.."

read -ra versions <<<"${VERSIONS:-3.9 3.10 3.11 3.12 3.13}"
limit_s=${TEST_TIMEOUT:-900}  # for one Python: a test that hangs must not hang the CI

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

mkdir -p .venvs
summary=()
absent=()
later=()  # what pytest is told on all but the first
failed=0
for version in "${versions[@]}"; do
    if ! python=$(find_python "$version"); then
        absent+=("$version")
        continue
    fi
    log=.venvs/$version.log
    started=$SECONDS
    status=0
    closing=
    echo "---- Python $version: $python"
    if scripts/bootstrap.sh ".venvs/$version" "$python"; then
        timeout --foreground --kill-after=30 "$limit_s" \
            ".venvs/$version/bin/python" -m pytest "${later[@]}" "$@" 2>&1 | tee "$log" || status=$?
        later=(-m "not slow")
        # pytest's closing line without its rule: "12 passed, 1 skipped in 3.45s"; a library may have its say after it
        closing=$(sed -nE 's/^(=+ )?([0-9].* in [0-9.]+s( \([0-9:]+\))?)( =+)?$/\2/p' "$log" | tail -n 1)
        [[ $status -ne 124 ]] || closing="stopped after $limit_s s"
    else
        status=1
        closing="could not be set up"
    fi
    result=passed
    [[ $status -eq 0 ]] || { result=FAILED; failed=1; }
    summary+=("$(printf '%-5s %-7s %s (%d s with set-up)' "$version" "$result" "$closing" $((SECONDS - started)))")
done

echo
echo "---- All Pythons"
[[ ${#summary[@]} -eq 0 ]] || printf '%s\n' "${summary[@]}"
[[ ${#absent[@]} -eq 0 ]] || echo "not found on this machine: ${absent[*]}"
[[ ${#summary[@]} -gt 0 ]] || { echo "no supported Python found" >&2; exit 1; }
exit "$failed"
