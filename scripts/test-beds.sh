#!/bin/bash
# Runs the tests beside real batch systems, databases, tools and simulated hardware, in five parts at once: databases
# compute, databases are killed and then pages drawn, dashboards are shown and packages built, jobs run until their
# walltime and are archived, the others mostly wait. What pytest said is in .venvs/computing.log, .venvs/killing.log and so on.
# With CI set, without the slow ones: kills of databases, the page's budget, requests made of its description.
#
# usage: test-beds.sh PYTHON [PYTEST ARGUMENT...]    with arguments: all in one run, on the terminal
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
killing=()
showing=()
archiving=()
waiting=()
for path in tests/beds/test_*.py; do
    case $path in
    */test_elasticsearch.py | *_shared.py | */test_archive_rebuild_database.py) computing+=("$path") ;;
    */test_exactly_once_database.py | */test_page*.py | */test_scale_out.py) killing+=("$path") ;;
    */test_grafana*.py | */test_http.py | */test_packages.py) showing+=("$path") ;;
    */test_archive_gridengine.py | */test_archive_oar.py | */test_archive_slurm.py) archiving+=("$path") ;;
    *) waiting+=("$path") ;;
    esac
done
parts=(computing killing showing archiving waiting)
for part in "${parts[@]}"; do
    declare -n paths=$part
    start "$part" "$python" -v --durations=15 "${selection[@]}" "${paths[@]}" &
done
wait
for part in "${parts[@]}"; do again "$part" "${selection[@]}" "tests/beds"; done
sum_up "${parts[@]}"
