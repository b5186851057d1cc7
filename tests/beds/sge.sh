#!/bin/bash
# A real Grid Engine cell on this machine: Debian's packages, two execution hosts. As root.
#
#   sge.sh up                            install what is missing, start; prints the directory of all its state
#   sge.sh submit [--as USER] [QSUB OPTION...] COMMAND    as an ordinary user; prints the job's id
#   sge.sh state ID                      as qstat prints it: r, qw, hqw, Eqw, ..., a line for each task; empty at the end
#   sge.sh wait ID [SECONDS]             until it is over
#   sge.sh delete ID                     qdel
#   sge.sh master (stop|start|freeze|thaw)    the daemon that all commands ask; frozen, it accepts calls and is silent
#   sge.sh logs                          the ends of all logs
#   sge.sh down                          kill jobs, stop all, leave nothing but the packages
#
# All but `up` find that directory in BED: export BED=$(sge.sh up). $BED/bin has qhost, qstat, qacct, qconf
# and qmod, which ask this cell from outside, too.
#
# The hosts are node1, which the master is on, and node2, with 16 slots of queue main.q and 8 GB of h_vmem (a consumable)
# each; other.q has one slot on node2. Parallel environments, all with tasks on both hosts under control: `one` keeps to
# one host, `both` uses as few hosts as it can, `spread` uses them in turn; `apart` does, too, and has a master task
# besides those of the slots (job_is_first_task FALSE).

source "$(dirname "$0")/common.sh"
export SGE_ROOT=${BED:-}/cell SGE_CELL=default SGE_QMASTER_PORT=6444 SGE_EXECD_PORT=6445

# on NODE COMMAND...: in the network and under the name of an execution host. The nodes share the mounts.
on() { nsenter --target "$(<"$BED/$1.pid")" --net --mount --uts -- "${@:2}"; }
inside() { on node1 "$@"; }
as_admin() { inside runuser -u sgeadmin -- "$@"; }
# daemon_on NODE NAME COMMAND...: in the background, its output in NAME.log
daemon_on() {
    nsenter --target "$(<"$BED/$1.pid")" --net --mount --uts -- setsid "${@:3}" </dev/null >>"$BED/$2.log" 2>&1 &
}

make_hosts() {
    make_namespaces '
        printf "%s\n" "127.0.0.1 localhost" "10.94.0.1 node1" "10.94.0.2 node2" >"$BED/hosts"
        keep() { echo $$ >"$BED/$1.new"; mv "$BED/$1.new" "$BED/$1.pid"; exec sleep infinity; }
        export -f keep
        unshare --uts bash -c "hostname node1; keep node1" &
        unshare --uts --net bash -c "hostname node2; keep node2" &
        for node in node1 node2; do
            until [[ -e $BED/$node.pid ]]; do sleep 0.05; done
        done
        ip link add bed1 type veth peer name bed2 netns "$(<"$BED/node2.pid")"
        ip address add 10.94.0.1/24 dev bed1
        ip link set bed1 up
        nsenter --target "$(<"$BED/node2.pid")" --net bash -euc "
            ip link set lo up
            ip address add 10.94.0.2/24 dev bed2
            ip link set bed2 up"'
}

# The files that the package makes at its installation, for a cell of our own.
make_cell() {
    local name
    mkdir -p "$SGE_ROOT/default/common" "$BED"/spool/{qmaster/job_scripts,database,execd} "$BED"/{run,bin,out}
    mkdir -m 1777 "$BED"/tmp.{node1,node2}
    for name in bin lib util utilbin; do
        cp -RP "/var/lib/gridengine/$name" "$SGE_ROOT/$name"
    done
    sed "s#/var/spool/gridengine/spooldb#$BED/spool/database#; s#/var/spool/gridengine#$BED/spool#" \
        /usr/share/gridengine/default-bootstrap >"$SGE_ROOT/default/common/bootstrap"
    echo node1 >"$SGE_ROOT/default/common/act_qmaster"
    echo colmet >"$SGE_ROOT/default/common/cluster_name"
    chown -R sgeadmin:sgeadmin "$SGE_ROOT" "$BED/spool" "$BED/run"
    chown "$user" "$BED/out"
    as_admin /usr/share/gridengine/scripts/init_cluster "$SGE_ROOT" default "$BED/spool/database" sgeadmin \
        >"$BED/init.log" 2>&1 || die "no cell"
    for name in qhost qstat qacct qconf qmod; do
        printf '#!/bin/bash\nexport SGE_ROOT=%q SGE_CELL=%s SGE_QMASTER_PORT=%s SGE_EXECD_PORT=%s\n' \
            "$SGE_ROOT" "$SGE_CELL" "$SGE_QMASTER_PORT" "$SGE_EXECD_PORT" >"$BED/bin/$name"
        printf 'exec nsenter --target "$(<%q)" --net --mount --uts -- /usr/bin/%s "$@"\n' "$BED/node1.pid" "$name" \
            >>"$BED/bin/$name"
    done
    chmod 755 "$BED"/bin/*
}

start_master() {
    SGE_ND=1 SGE_MASTER_PIDFILE=$BED/run/qmaster.pid daemon_on node1 qmaster sge_qmaster
    until_true 30 as_admin qconf -sss || die "sge_qmaster does not start"
}
signal_master() { pkill "-$1" -x sge_qmaster --ns "$(<"$BED/ns.pid")" --nslist mnt || die "sge_qmaster does not run"; }
stop_master() { signal_master KILL; }
freeze_master() { signal_master STOP; }
thaw_master() { signal_master CONT; }

# add WHAT FILE, change WHAT FILE: qconf reads it from files
add() { inside qconf "-A$1" "$BED/$2" >>"$BED/qconf.log" 2>&1 || die "qconf -A$1 $2: $(tail -n 3 "$BED/qconf.log")"; }
change() { inside qconf "-M$1" "$BED/$2" >>"$BED/qconf.log" 2>&1 || die "qconf -M$1 $2: $(tail -n 3 "$BED/qconf.log")"; }

configure() {
    local node name rule first
    inside qconf -as node1,node2 >>"$BED/qconf.log" 2>&1
    inside qconf -sconf | sed "s#^execd_spool_dir.*#execd_spool_dir $BED/spool/execd#
        s#^load_report_time.*#load_report_time 00:00:01#
        s#^min_uid.*#min_uid 100#; s#^min_gid.*#min_gid 100#
        s#^gid_range.*#gid_range 64100-64199#" >"$BED/global"
    change conf global
    inside qconf -ssconf | sed 's#^schedule_interval.*#schedule_interval 0:0:1#
        s#^flush_submit_sec.*#flush_submit_sec 1#
        s#^flush_finish_sec.*#flush_finish_sec 1#' >"$BED/sconf"
    change sconf sconf
    # An execution host knows the processes of a job by a group of its own, and both hosts have the same kernel; the
    # directories of jobs have numbers of jobs for names. Neither may be those of another cell on this machine.
    mkdir "$BED/local"
    echo "gid_range 64200-64299" >"$BED/local/node2"
    add conf local/node2
    inside qconf -sc | sed 's#^h_vmem .*#h_vmem h_vmem MEMORY <= YES YES 64M 0#' >"$BED/complexes"
    change c complexes
    for node in node1 node2; do
        printf '%s\n' "hostname $node" "load_scaling NONE" "complex_values h_vmem=8G" "user_lists NONE" \
            "xuser_lists NONE" "projects NONE" "xprojects NONE" "usage_scaling NONE" "report_variables NONE" \
            >"$BED/host.$node"
        add e "host.$node"
    done
    while read -r name rule first; do
        printf '%s\n' "pe_name $name" "slots 99" "user_lists NONE" "xuser_lists NONE" "start_proc_args NONE" \
            "stop_proc_args NONE" "allocation_rule $rule" "control_slaves TRUE" "job_is_first_task $first" \
            "urgency_slots min" "accounting_summary TRUE" "qsort_args NONE" >"$BED/pe.$name"
        add p "pe.$name"
    done <<<"one \$pe_slots TRUE
both \$fill_up TRUE
spread \$round_robin TRUE
apart \$round_robin FALSE"
    inside qconf -sq | sed "s#^qname .*#qname main.q#; s#^hostlist .*#hostlist node1 node2#; s#^slots .*#slots 16#
        s#^load_thresholds .*#load_thresholds NONE#; s#^pe_list .*#pe_list one both spread apart#
        s#^tmpdir .*#tmpdir $BED/tmp.node1,[node2=$BED/tmp.node2]#
        s#^shell_start_mode .*#shell_start_mode unix_behavior#" \
        >"$BED/main.q"
    add q main.q
    sed "s#^qname .*#qname other.q#; s#^hostlist .*#hostlist node2#; s#^slots .*#slots 1#; s#^pe_list .*#pe_list NONE#" \
        "$BED/main.q" >"$BED/other.q"
    add q other.q
}

hosts_report() { [[ $(inside qhost | grep -cE '^node[12] .* [0-9.]+[GM] ') -eq 2 ]]; }
start_hosts() {
    local node
    for node in node1 node2; do
        SGE_ND=1 SGE_EXECD_PIDFILE=$BED/run/execd.$node.pid daemon_on "$node" "execd.$node" sge_execd
    done
    until_true 40 hosts_report || die "an execution host does not report"
}

up() {
    prepare gridengine-master gridengine-exec gridengine-client iproute2 procps
    export SGE_ROOT=$BED/cell
    make_hosts
    make_cell
    start_master
    configure
    start_hosts
    ready
}

job_submit() {
    local as=$user
    [[ $1 != --as ]] || { as=$2; shift 2; }
    inside runuser -u "$as" -- qsub -terse -S /bin/sh -o /dev/null -j y -wd "$BED/out" -b n "${@:1:$#-1}" <<<"${!#}" | sed 's/\..*//'
}
job_state() { inside qstat -u '*' | awk -v job="$1" '$1 == job { print $5 }'; }
job_over() { [[ -z $(job_state "$1") ]]; }
job_wait() { until_true "${2:-60}" job_over "$1" || die "job $1 is $(job_state "$1") still"; }
job_delete() { inside qdel "$1"; }

down() {
    # No state is kept. What is asked to end may ask a master that has gone, or may be suspended.
    ! is_up || members "$(<"$BED/ns.pid")" | xargs -r kill -9 2>/dev/null || true
    stop
    rm -rf "$BED"
    say "down"
}

if [[ ${1:-} == master ]]; then
    need_up
    "${2:-usage}_master"
else
    main "$@"
fi
