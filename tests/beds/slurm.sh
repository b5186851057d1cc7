#!/bin/bash
# A real Slurm on this machine: Debian's packages, one node or two. As root; needs cgroup v1.
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
#
# ACCOUNTS=yes adds slurmdbd with MariaDB, account physics with that user in it, and has two nodes, <host>-a and <host>-b,
# on which memory is allocated. Each has cgroups of its own, and sees the processors and the memory of this machine.

source "$(dirname "$0")/common.sh"
lock=/run/colmet-jobs.lock # an agent sees the cgroups of both beds, whose jobs have the same numbers
host=$(hostname -s)
nodes=("$host")
[[ -z ${ACCOUNTS:-} ]] || nodes=("$host-a" "$host-b")

configure() {
    local hardware node port=6900 storage=accounting_storage/none select=CR_Core limit=
    [[ -z ${ACCOUNTS:-} ]] || { storage=accounting_storage/slurmdbd select=CR_Core_Memory limit=DefaultTime=10; }
    mkdir -p "$BED"/{state,munge}
    chown munge:munge "$BED/munge"
    hardware=$(slurmd -C | sed -n 's/^NodeName=[^ ]* //p')
    cat >"$BED/slurm.conf" <<END
ClusterName=colmet
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$BED/state
SlurmdSpoolDir=$BED/spool.%n
SlurmctldPidFile=$BED/slurmctld.pid
SlurmdPidFile=$BED/slurmd.%n.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/${GATHER:-none}
AccountingStorageType=$storage
SelectType=select/cons_tres
SelectTypeParameters=$select
DefMemPerCPU=100
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
KillWait=5
PartitionName=bed Nodes=$(IFS=, && echo "${nodes[*]}") Default=YES OverSubscribe=FORCE:4 $limit
END
    for node in "${nodes[@]}"; do
        echo "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port++)) $hardware" >>"$BED/slurm.conf"
    done
    cat >"$BED/cgroup.conf" <<END
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=yes
ConstrainRAMSpace=$([[ ${GATHER:-none} == cgroup ]] && echo yes || echo no)
END
    make_namespaces 'install -d -o munge /run/munge'
}

# Without the guards against power cuts: nothing of it is kept.
start_accounts() {
    local database=(--no-defaults --user=mysql --datadir="$BED/database" --socket=/run/mysqld/mysqld.sock
        --tmpdir="$BED/database" --innodb-buffer-pool-size=64M --innodb-log-file-size=16M)
    install -d -o mysql "$BED/database"
    inside install -d -o mysql /run/mysqld
    inside mariadb-install-db "${database[@]}" --auth-root-authentication-method=normal --skip-test-db \
        >"$BED/mariadb-install.log" 2>&1 || die "no database"
    daemon mariadb mariadbd "${database[@]}" --bind-address=127.0.0.1 --pid-file="$BED/database/pid" \
        --innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900
    until_true 30 inside mariadb-admin --no-defaults --socket=/run/mysqld/mysqld.sock ping || die "MariaDB does not start"
    inside mariadb --no-defaults --socket=/run/mysqld/mysqld.sock -e "CREATE DATABASE slurm_acct_db;
        CREATE USER slurm@localhost IDENTIFIED BY 'slurm'; GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
    (umask 077 && cat >"$BED/slurmdbd.conf") <<END
AuthType=auth/munge
DbdHost=$host
DbdAddr=127.0.0.1
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
PidFile=$BED/slurmdbd.pid
CommitDelay=1
END
    daemon slurmdbd slurmdbd -D
    until_true 40 inside sacctmgr -n list cluster || die "slurmdbd does not start"
    inside sacctmgr -iQ add cluster colmet >"$BED/sacctmgr.log"
    inside sacctmgr -iQ add account physics >>"$BED/sacctmgr.log"
    inside sacctmgr -iQ add user "$user" account=physics >>"$BED/sacctmgr.log"
}

is_idle() { [[ $(inside sinfo -h -N -o %T | grep -c idle) -eq ${#nodes[@]} ]]; }
start() {
    local node
    (umask 077 && head -c 128 /dev/urandom >"$BED/munge/key" && chown munge "$BED/munge/key")
    daemon munge runuser -u munge -- munged --foreground --key-file="$BED/munge/key" --seed-file="$BED/munge/seed" \
        --log-file="$BED/munge/log" --pid-file="$BED/munge/pid"
    until_true 20 inside bash -c 'munge -n | unmunge' || die "munge does not start"
    [[ -z ${ACCOUNTS:-} ]] || start_accounts
    daemon slurmctld slurmctld -D
    # a slurmd that comes first tries again only after a minute
    until_true 40 inside scontrol ping || die "slurmctld does not start"
    for node in "${nodes[@]}"; do
        daemon "slurmd.$node" slurmd -D -N "$node"
    done
    until_true 60 is_idle || die "a node does not become idle"
    # a first job has Slurm make what lies above the cgroups of jobs
    [[ -z ${ACCOUNTS:-} ]] || as_user srun --quiet --chdir=/ --nodes=2 true >"$BED/first.log" 2>&1
}

up() {
    local accounts=()
    [[ -z ${ACCOUNTS:-} ]] || accounts=(slurmdbd mariadb-server)
    prepare slurmctld slurmd slurm-client munge iproute2 procps "${accounts[@]}"
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
    stop remove_cgroups /sys/fs/cgroup/*/slurm*
    rm -rf "$BED"
    say "down"
}

export SLURM_CONF=${BED:-}/slurm.conf
main "$@"
