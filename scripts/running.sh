# What the scripts that run tests share: runs of pytest, and what they came to. Sourced by bash.
#
# A run has a NAME: the output of pytest is in .venvs/NAME.log, its cache in .venvs/NAME.cache.

cpus=$(nproc)
# One process more than CPUs, as a test waits now and then. Each process holds up to 0.8 GB.
parallel=(-n "${WORKERS:-$((cpus < 8 ? cpus + 1 : 8))}" --dist worksteal)
limit_s=${TEST_TIMEOUT:-3600}  # for a run: a test that hangs must not hang the CI; a loaded machine may need long
most_again=5                   # more failures are not the machine's

# what tests need of the system; where one is missing, they skip with the reason
tools=(
    mount procps iproute2  # file systems, `free`, network namespaces
    git                    # a release is made of a repository
    man-db zsh        # read the manual pages and the completion of shells
    systemd                # systemd-analyze judges the units
)

unset PYTHONDONTWRITEBYTECODE # each process would compile all that it imports

mkdir -p .venvs

# need_tools: install them where this is root.
need_tools() {
    [[ $EUID -ne 0 ]] || scripts/need.sh "${tools[@]}" || echo "setup: tests that try these (shells, manual pages, systemd) skip" >&2
}

# warm PYTHON: compile once, in a new checkout or environment, what otherwise each process of a run compiles.
warm() {
    local tag
    tag=$("$1" -c 'import sys; print(sys.implementation.cache_tag)')
    compgen -G "tests/*/__pycache__/*.$tag-pytest-*.pyc" >/dev/null ||
        "$1" -m pytest -p no:cacheprovider --collect-only -q >/dev/null 2>&1 || true # the run itself says what is wrong
}

# start NAME PYTHON PYTEST_ARGUMENT...: run it now.
start() {
    echo "---- $1: pytest ${*:3} > .venvs/$1.log"
    show "$@" >".venvs/$1.log" 2>&1
}

# show NAME PYTHON PYTEST_ARGUMENT...: run it now, on the terminal.
show() {
    local name=$1 status=0
    echo "$2" >".venvs/$name.python"
    rm -rf ".venvs/$name.cache"
    run_pytest "$name" "${@:3}" || status=$?
    echo "$status" >".venvs/$name.status"
}

run_pytest() {
    local name=$1
    shift
    # interrupted, pytest stops what its fixtures have started
    timeout --foreground --signal=INT --kill-after=90 "$limit_s" \
        "$(<".venvs/$name.python")" -m pytest -o cache_dir=".venvs/$name.cache" "$@"
}

# again NAME: run a few tests that failed once more, alone, and name those that pass as flaky. A defect fails twice; a
# flaky test is one, too, that does not stop the others' work.
again() {
    local name=$1 status failed
    status=$(<".venvs/$name.status")
    [[ $status -eq 1 ]] || return 0 # 1: tests failed
    failed=$("$(<".venvs/$name.python")" -c \
        'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' ".venvs/$name.cache/v/cache/lastfailed")
    [[ $(wc -l <<<"$failed") -le $most_again ]] || return 0
    echo "---- $name: the tests that failed run once more, alone"
    status=0
    run_pytest "$name" --last-failed "${@:2}" 2>&1 | tee -a ".venvs/$name.log" || status=$?
    echo "$status" >".venvs/$name.status"
    [[ $status -ne 0 ]] || sed "s/^/flaky: $name: /" <<<"$failed"
}

# What pytest says of failures, or the end of what it said where it did not come that far.
show_failures() {
    sed -nE '/^=+ (FAILURES|ERRORS) =+$/,$p' "$1" | grep . || tail -n 100 "$1"
}

# sum_up NAME...: what failed, and a line for each run. Status 1 where anything failed.
sum_up() {
    local name status result closing lines=() failed=0
    for name; do
        status=$(cat ".venvs/$name.status" 2>/dev/null || echo 99)
        result=passed
        # 5: of what was asked for, none is among these
        if [[ $status -ne 0 && ($status -ne 5 || $asked_for -eq 0) ]]; then
            failed=1 result=FAILED
            echo
            echo "---- $name failed"
            show_failures ".venvs/$name.log"
        fi
        # pytest's closing line without its rule: "12 passed, 1 skipped in 3.45s"; a library may have its say after it.
        # Two of them, where some tests ran once more.
        closing=$(sed -nE 's/^(=+ )?([0-9].* in [0-9.]+s( \([0-9:]+\))?)( =+)?$/\2/p' ".venvs/$name.log" | paste -s -d ';')
        [[ $status -ne 124 ]] || closing="stopped after $limit_s s"
        lines+=("$(printf '%-14s %-7s %s' "$name" "$result" "$closing")")
    done
    echo
    printf '%s\n' "${lines[@]}"
    return "$failed"
}
