#!/bin/bash
# Runs the tests but for the slow ones on all CPUs: at most five minutes on two. With arguments: pytest with these, in
# one process.
#
# usage: [WORKERS=3] test.sh PYTHON [PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/running.sh
python=$1
shift
[[ $# -eq 0 ]] || exec "$python" -m pytest "$@"
need_tools &
warm "$python"
wait
show test "$python" "${parallel[@]}" -m "not slow"
again test
exit "$(<.venvs/test.status)"
