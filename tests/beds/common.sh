# What the beds share; sourced by each. A bed runs its daemons in a network and a mount namespace of its own, where the
# ports and paths that they insist on are free, whatever else the machine runs; processes and cgroups are the machine's.
set -euo pipefail
export LANG=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bed=$(basename "$0" .sh)
user=colmet-$bed # whose jobs they are
lock=/run/$user.lock

say() { printf '%s bed: %s\n' "$bed" "$*" >&2; }
die() { say "$@"; exit 1; }
cannot() { say "$@"; exit 77; } # this machine cannot have the bed
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# until_true SECONDS COMMAND...: try it until it succeeds
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

# Installs packages without starting what they bring: the bed starts its own.
install_packages() (
    command -v apt-get >/dev/null || cannot "needs Debian's packages, and there is no apt-get"
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    "$here/../../scripts/need.sh" "$@"
)

# What `up` begins with; the arguments are packages.
prepare() {
    [[ $EUID -eq 0 ]] || cannot "needs root"
    [[ -w /sys/fs/cgroup/cpuset/tasks ]] || cannot "needs cgroup v1: no cpuset hierarchy in /sys/fs/cgroup/cpuset"
    unshare --net --mount true || cannot "needs namespaces of its own, and unshare is refused here"
    if is_up && [[ -e $BED/ready ]]; then
        say "is up already"
        echo "$BED"
        exit 0
    fi
    [[ ! -e ${BED:-}/bed ]] || down # it did not come up, or died
    [[ -z $(ls -A "${BED:-/none}" 2>/dev/null) ]] || die "BED=$BED is not empty"
    # The cgroups of all beds of a kind have the same names, so there is one at a time. Its processes keep the lock.
    until [[ $lock -ef /dev/fd/9 ]]; do
        exec 9>>"$lock"
        flock --wait 300 9 || die "another one is up (BED=$(<"$lock")), and has not ended in 5 minutes"
    done
    export BED=${BED:-$(mktemp -d "/tmp/$bed-bed.XXXXXX")}
    echo "$BED" >"$lock"
    mkdir -p "$BED"
    chmod 755 "$BED" # daemons under their own users read here
    touch "$BED/bed" # it is ours, and may be removed
    trap failed EXIT
    trap 'exit 130' INT TERM
    install_packages "$@"
    if ! id "$user" >/dev/null 2>&1; then
        useradd --system --no-create-home --home-dir / --shell /bin/bash "$user"
        touch "$BED/user-made"
    fi
}
failed() {
    say "did not come up; the ends of its logs:"
    logs >&2
    down
}
ready() {
    touch "$BED/ready"
    trap - EXIT INT TERM
    say "up after $SECONDS s"
    echo "$BED"
}

is_up() { [[ -n ${BED:-} && -e $BED/ns.pid ]] && readlink "/proc/$(<"$BED/ns.pid")/ns/mnt" >/dev/null; }
need_up() { is_up || die "is not up; 'up' first, and set BED to the directory that it names"; }

# Makes the namespaces, with a /run of their own, and runs a script in them that mounts what else the bed wants private.
make_namespaces() {
    setsid unshare --net --mount --propagation private bash -euc '
        ip link set lo up
        ip address add 127.0.0.2/8 dev lo  # with 127.0.0.1 alone, getaddrinfo regards IPv4 as absent
        mount -t tmpfs -o mode=755 tmpfs /run
        echo "127.0.0.1 localhost $(hostname) $(hostname -s)" >"$BED/hosts"
        mount --bind "$BED/hosts" /etc/hosts
        eval "$1"
        echo $$ >"$BED/ns.pid.new"; mv "$BED/ns.pid.new" "$BED/ns.pid"
        exec sleep infinity' sh "$1" </dev/null >"$BED/namespaces.log" 2>&1 &
    until_true 10 test -e "$BED/ns.pid" || die "no namespaces"
}

inside() { nsenter --target "$(<"$BED/ns.pid")" --net --mount -- "$@"; }
as_user() { inside runuser -u "$user" -- "$@"; }
# daemon NAME COMMAND...: in the background, its output in NAME.log
daemon() {
    nsenter --target "$(<"$BED/ns.pid")" --net --mount -- setsid "${@:2}" </dev/null >>"$BED/$1.log" 2>&1 &
}

# The processes in the bed's namespaces: all that the bed started, and nothing else.
members() {
    { find /proc/[0-9]*/ns/mnt -maxdepth 0 -printf '%l %h\n' 2>/dev/null || true; } |
        awk -v mine="$(readlink "/proc/$1/ns/mnt")" -F '[ /]' -v keeper="$1" '$1 == mine && $4 != keeper { print $4 }'
}
alone() { [[ -z $(members "$1") ]]; }

# stop [COMMAND...]: ends every process of the bed, runs a command that removes what they left, and only then releases
# the lock: another bed has the same names.
stop() {
    local keeper=
    if is_up; then
        keeper=$(<"$BED/ns.pid")
        members "$keeper" | xargs -r kill 2>/dev/null || true
        until_true 10 alone "$keeper" || members "$keeper" | xargs -r kill -9
        until_true 10 alone "$keeper" || say "processes are left: $(members "$keeper" | xargs)"
    fi
    [[ ! -e $BED/alone || $# -eq 0 ]] || "$@"
    [[ ! -e $BED/user-made ]] || userdel "$user" || true
    [[ -n $keeper ]] || return 0
    rm -f "$lock"
    kill -9 "$keeper"
}

# remove_cgroups TREE...: where they exist; a group is busy until its last process has been reaped
remove_cgroups() {
    local tree
    for tree; do
        [[ ! -d $tree ]] || until_true 10 find "$tree" -depth -type d -exec rmdir {} + || say "$tree is left"
    done
}

logs() {
    local log
    for log in "${BED:-/nonexistent}"/*.log; do
        [[ ! -s $log ]] || printf -- '---- %s\n%s\n' "$log" "$(tail -n "${LINES_OF_LOG:-25}" "$log")"
    done
}

# Runs the command line: a function of the bed's, by the name that its header gives.
main() {
    local command=${1:-}
    shift || usage
    case $command in
        up) up ;;
        down) [[ ! -e ${BED:-}/bed ]] || down ;;
        submit | state | wait | delete | get) need_up; "job_$command" "$@" ;;
        logs) logs ;;
        *) usage ;;
    esac
}
