#!/bin/bash
# Runs the tests on all CPUs: those that are not slow, in at most five minutes on two; with the word slow, these alone. With
# other arguments: pytest with these, in one process. With CI set, those of endurance are left out.
#
# usage: [WORKERS=3] [PACKAGES="node web"] [WITHOUT=FILE] test.sh PYTHON [slow | PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/running.sh
python=$1
shift
name=test arguments=(-m "not slow")
for package in ${PACKAGES:-}; do arguments+=("tests/$package"); done
if [[ $* == slow ]]; then
    # Of the files without a slow test, none is read.
    mapfile -t paths < <(grep -lr --include='test_*.py' --exclude-dir=beds 'mark\.slow' tests | grep -vxF "${WITHOUT:-}")
    name=slow arguments=(-m "slow${CI:+ and not endurance}" --durations=30 "${paths[@]}")
elif [[ $# -gt 0 ]]; then
    exec "$python" -m pytest "$@"
fi
echo "tests: programs that they try, and a list of all tests (a minute the first time)"
need_tools &
warm "$python"
wait
show "$name" "$python" "${parallel[@]}" "${arguments[@]}"
again "$name"
exit "$(<".venvs/$name.status")"
