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
[[ $# -gt 0 ]] || set -- "${parallel[@]}" -m "not slow"
exec "$python" -m pytest "$@"
