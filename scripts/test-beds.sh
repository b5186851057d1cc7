#!/bin/bash
# Runs the tests beside real batch systems, databases, tools and simulated hardware, in four parts at once: databases
# compute, pages are drawn, batch systems run jobs, the others mostly wait. What pytest said is in .venvs/computing.log and
# so on.
# With CI set, without the slow ones: more than one of a kind, kills of databases, the page's budget.
#
# usage: [PARTS="computing waiting"] test-beds.sh PYTHON [PYTEST ARGUMENT...]
# With arguments: all in one run, on the terminal.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
[[ $# -eq 0 ]] || exec "$python" -m pytest -v tests/beds --ignore=tests/beds/packages "$@"
source scripts/running.sh
limit_s=${TEST_TIMEOUT:-1500} # real programs are slow on a loaded machine
asked_for=0
selection=()
[[ ! ${CI:-} ]] || selection=(-m "not slow")

computing=()
showing=()
running=()
waiting=()
for path in tests/beds/test_*.py; do
    case $path in
    */test_elasticsearch.py | *_shared.py | *_database.py | */test_scale_out.py) computing+=("$path") ;;
    */test_grafana*.py | */test_http.py | */test_page*.py) showing+=("$path") ;;
    *oar.py | *slurm*.py | *gridengine.py) running+=("$path") ;;
    *) waiting+=("$path") ;;
    esac
done
read -r -a parts <<<"${PARTS:-computing showing running waiting}"
for part in "${parts[@]}"; do
    declare -n paths=$part
    start "$part" "$python" -v --durations=15 "${selection[@]}" "${paths[@]}" &
done
wait
for part in "${parts[@]}"; do again "$part" "${selection[@]}" "tests/beds"; done
sum_up "${parts[@]}"
