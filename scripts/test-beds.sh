#!/bin/bash
# Runs the tests beside real batch systems, databases, tools and simulated hardware, in four parts at once: databases
# compute, pages are shown and packages built, jobs run until their walltime and are archived, the others mostly wait.
# What pytest said is in .venvs/computing.log, .venvs/showing.log, .venvs/archiving.log and .venvs/waiting.log.
#
# usage: test-beds.sh PYTHON [PYTEST ARGUMENT...]    with arguments: all in one run, on the terminal
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
[[ $# -eq 0 ]] || exec "$python" -m pytest -v tests/beds "$@"
source scripts/running.sh
asked_for=0

computing=()
showing=()
archiving=()
waiting=()
for path in tests/beds/test_*.py; do
    case $path in
    *_database.py | *_shared.py | */test_elasticsearch.py | */test_scale_out.py) computing+=("$path") ;;
    */test_grafana*.py | */test_http.py | */test_packages.py | */test_page.py) showing+=("$path") ;;
    */test_archive_gridengine.py | */test_archive_oar.py | */test_archive_slurm.py) archiving+=("$path") ;;
    *) waiting+=("$path") ;;
    esac
done
start computing "$python" -v "${computing[@]}" &
start showing "$python" -v "${showing[@]}" &
start archiving "$python" -v "${archiving[@]}" &
start waiting "$python" -v "${waiting[@]}" &
wait
for name in computing showing archiving waiting; do again "$name" "tests/beds"; done
sum_up computing showing archiving waiting
