#!/bin/bash
# A simulated InfiniBand fabric on this machine, and the real ibstat and perfquery in it. As root.
#
#   ibsim.sh up                          install what is missing, start
#   ibsim.sh console COMMAND...          of ibsim: PerformanceSet "node0"[1] PortCountersExtended.PortXmitData=7
#   ibsim.sh manage                      run the subnet manager again: linked ports become active
#   ibsim.sh stop                        end the simulator alone: the tools find nobody, and wait
#   ibsim.sh logs                        the ends of all logs
#   ibsim.sh down                        stop all, leave nothing but the packages
#
# All work in the directory that BED names, which `up` makes. Fabrics in several directories do not meet.
# With PATH=$BED/bin:$PATH, ibstat and perfquery are those of a node with two adapters, ibsim0 and ibsim1. (The simulator
# gives each of its nodes one, ibsim0: these are ibsim0 of node0 and of node1.) A subnet manager has made their ports active.

source "$(dirname "$0")/common.sh"
: "${BED:?name a directory}"
export IBSIM_SOCKNAME=colmet-${BED//\//-} # abstract sockets, named by this

make_tools() {
    local tool
    mkdir -p "$BED/bin" "$BED/run"
    for tool in ibstat perfquery; do
        cat >"$BED/bin/$tool" <<END
#!/bin/bash
export IBSIM_SOCKNAME=$IBSIM_SOCKNAME
cd "$BED/run" # where the simulator's library makes files
END
        chmod +x "$BED/bin/$tool"
    done
    cat >>"$BED/bin/ibstat" <<'END'
for node in 0 1; do
    SIM_HOST=node$node ibsim-run /usr/sbin/ibstat "$@" | sed "s/'ibsim0'/'ibsim$node'/" || exit
done
END
    cat >>"$BED/bin/perfquery" <<'END'
node=0
for ((n = 1; n < $#; n++)); do
    [[ ${!n} == -C ]] || continue
    device=$((n + 1))
    node=${!device#ibsim}
    set -- "${@:1:n}" ibsim0 "${@:n+2}"
done
SIM_HOST=node$node exec ibsim-run /usr/sbin/perfquery "$@"
END
}

prompts() { grep -o 'sim> ' "$BED/ibsim.log" | wc -l; }
more_prompts_than() { (($(prompts) > $1)); }

console() {
    local before
    before=$(prompts)
    echo "$*" >"$BED/console"
    until_true 10 more_prompts_than "$before" || die "the simulator does not answer"
}

up() {
    [[ $EUID -eq 0 ]] || cannot "needs root"
    [[ ! -e $BED/ibsim.pid ]] || die "is up already"
    install_packages ibsim-utils infiniband-diags opensm
    mkdir -p "$BED"
    make_tools
    cat >"$BED/net" <<'END'
Switch	8 "switch"
[1]	"node0"[1]
[2]	"node1"[1]
[3]	"manager"[1]

Hca	1 "node0"
[1]	"switch"[1]

Hca	1 "node1"
[1]	"switch"[2]

Hca	1 "manager"
[1]	"switch"[3]
END
    mkfifo "$BED/console"
    cd "$BED/run"
    # read and write: its input never ends
    setsid ibsim -s "$BED/net" <>"$BED/console" >"$BED/ibsim.log" 2>&1 &
    echo $! >"$BED/ibsim.pid"
    until_true 10 grep -q 'simulator ready' "$BED/ibsim.log" || die "ibsim does not start: $(logs)"
    manage
    say "up after $SECONDS s"
}

manage() {
    cd "$BED/run"
    OSM_TMP_DIR=$BED/run OSM_CACHE_DIR=$BED/run SIM_HOST=manager timeout 60 \
        ibsim-run opensm --once -f "$BED/opensm.log" >"$BED/opensm.out" 2>&1 || die "no subnet manager: $(logs)"
    "$BED/bin/ibstat" >"$BED/ibstat.out"
    grep -q 'State: Active' "$BED/ibstat.out" || die "no port is active: $(logs)"
}

stop() {
    local pid
    pid=$(cat "$BED/ibsim.pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || true
    until_true 10 gone "$pid" || kill -9 "$pid"
    rm -f "$BED/ibsim.pid"
}
gone() { ! kill -0 "$1" 2>/dev/null; }

down() {
    stop
    rm -rf "$BED/run" "$BED/bin" "$BED"/{console,net,*.log,*.out}
}

command=${1:-}
shift || usage
case $command in
    up | console | manage | stop | logs | down) "$command" "$@" ;;
    *) usage ;;
esac
