#!/bin/bash
# A real Slurm on this machine: Debian's packages, one node. As root; needs cgroup v1.
#
#   slurm.sh up                          install what is missing, start; prints the directory of all its state
#   slurm.sh submit [SBATCH OPTION...] COMMAND    as an ordinary user; prints the job's id
#   slurm.sh state ID                    PENDING, RUNNING, COMPLETED, CANCELLED, ...
#   slurm.sh wait ID [SECONDS]           until it is over; prints its state
#   slurm.sh delete ID                   scancel
#   slurm.sh logs                        the ends of all logs
#   slurm.sh down                        cancel jobs, stop all, leave nothing but the packages
#
# All but `up` find that directory in BED: export BED=$(slurm.sh up). GATHER=cgroup has Slurm account jobs itself, through
# cgroups of cpuacct and memory beside those of freezer and cpuset, and limits their memory; without, it does neither.
# The jobs' cgroups: /sys/fs/cgroup/<controller>/slurm_<node>/uid_<uid>/job_<id>, and step_<step> below.

source "$(dirname "$0")/common.sh"
lock=/run/colmet-jobs.lock # an agent sees the cgroups of both beds, whose jobs have the same numbers
node=$(hostname -s)

configure() {
    local hardware
    mkdir -p "$BED"/{state,spool,munge}
    chown munge:munge "$BED/munge"
    hardware=$(slurmd -C | sed -n 's/^NodeName=[^ ]* //p')
    cat >"$BED/slurm.conf" <<END
ClusterName=colmet
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$BED/state
SlurmdSpoolDir=$BED/spool
SlurmctldPidFile=$BED/slurmctld.pid
SlurmdPidFile=$BED/slurmd.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/${GATHER:-none}
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
KillWait=5
NodeName=$node NodeAddr=127.0.0.1 $hardware
PartitionName=bed Nodes=$node Default=YES OverSubscribe=FORCE:4
END
    cat >"$BED/cgroup.conf" <<END
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=yes
ConstrainRAMSpace=$([[ ${GATHER:-none} == cgroup ]] && echo yes || echo no)
END
    make_namespaces 'install -d -o munge /run/munge'
}

is_idle() { inside sinfo -h -o %T | grep -q idle; }
start() {
    (umask 077 && head -c 128 /dev/urandom >"$BED/munge/key" && chown munge "$BED/munge/key")
    daemon munge runuser -u munge -- munged --foreground --key-file="$BED/munge/key" --seed-file="$BED/munge/seed" \
        --log-file="$BED/munge/log" --pid-file="$BED/munge/pid"
    until_true 20 inside bash -c 'munge -n | unmunge' || die "munge does not start"
    daemon slurmctld slurmctld -D
    daemon slurmd slurmd -D
    until_true 60 is_idle || die "the node does not become idle"
}

up() {
    prepare slurmctld slurmd slurm-client munge iproute2 procps
    ! pgrep -x slurmd >/dev/null || die "a Slurm runs on this machine already"
    touch "$BED/alone" # so the cgroups are this one's
    export SLURM_CONF=$BED/slurm.conf
    configure
    start
    ready
}

job_submit() {
    local options=("${@:1:$#-1}")
    as_user sbatch --parsable -D / -o /dev/null "${options[@]}" --wrap "${!#}"
}
job_state() { inside squeue -h -t all -j "$1" -o %T; }
job_over() { [[ ! $(job_state "$1") =~ ^(PENDING|RUNNING|COMPLETING|SUSPENDED)$ ]]; }
job_wait() {
    until_true "${2:-120}" job_over "$1" || die "job $1 is $(job_state "$1") still"
    job_state "$1"
}
job_delete() { as_user scancel "$1"; }

idle() { [[ -z $(inside timeout 10 squeue -h) ]]; }
down() {
    if is_up && [[ -e $BED/ready ]] && ! idle; then
        inside timeout 20 scancel -u "$user" || true
        until_true 30 idle || say "jobs are left, and are killed"
    fi
    stop
    [[ ! -e $BED/alone ]] || remove_cgroups /sys/fs/cgroup/*/slurm*
    rm -rf "$BED"
    say "down"
}

export SLURM_CONF=${BED:-}/slurm.conf
main "$@"
