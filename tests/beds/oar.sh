#!/bin/bash
# A real OAR on this machine: Debian's packages, one node with four resources, PostgreSQL. As root; needs cgroup v1.
#
#   oar.sh up                            install what is missing, start; prints the directory of all its state
#   oar.sh submit [OARSUB OPTION...] COMMAND    as an ordinary user; prints the id of the job, or of each in an array
#   oar.sh state ID                      Waiting, Running, Terminated, Error, ...
#   oar.sh wait ID [SECONDS]             until it is over; prints its state
#   oar.sh delete ID                     oardel
#   oar.sh get PATH FILE                 asks OAR's REST API, as that user; prints status and type of what is now in FILE
#   oar.sh logs                          the ends of all logs
#   oar.sh down                          kill jobs, stop all, leave nothing but the packages
#
# All but `up` find that directory in BED: export BED=$(oar.sh up). The jobs' cgroups are where OAR always makes them:
# /dev/oar_cgroups_links/<controller>/oar/<user>_<id>.
#
# MEMORY=MIB has OAR make cgroups of memory, too: MIB for each core. RESOURCES=N has N cores on each node.
# TWO_NODES=yes adds node2. The process in $BED/node2.pid has its mount namespace, where the cgroup hierarchies are the
# groups colmet-node2 of this machine's.
#
# The API has data of jobs extracted by colmet-extract of this source, with PYTHON (python3), from what a collector
# writes to $BED/hdf5/colmet. User oar runs it, who may not enter /root: all that it needs is seen below BED, too.

source "$(dirname "$0")/common.sh"
lock=/run/colmet-jobs.lock # an agent sees the cgroups of both beds, whose jobs have the same numbers
links=/dev/oar_cgroups_links
names=(localhost ${TWO_NODES:+node2})
resources=${RESOURCES:-4}

# The one configuration file that OAR knows is replaced in the bed's namespace alone.
configure() {
    local key value
    cp -p /etc/oar/oar.conf "$BED/oar.conf"
    while read -r key value; do
        sed -i -E "/^#?$key=/d" "$BED/oar.conf"
        echo "$key=\"$value\"" >>"$BED/oar.conf"
    done <<<"DB_TYPE Pg
DB_HOSTNAME 127.0.0.1
DB_PORT 5432
DB_BASE_PASSWD oar
DB_BASE_PASSWD_RO oar_ro
SERVER_HOSTNAME localhost
LOG_FILE $BED/oar.log
JOB_RESOURCE_MANAGER_PROPERTY_DB_FIELD cpuset
SCHEDULER_MIN_TIME_BETWEEN_2_CALLS 0
API_COLMET_EXTRACT_PATH $BED/colmet-extract
API_COLMET_HDF5_PATH_PREFIX $BED/hdf5/colmet"
    install -o oar -g oar /dev/null "$BED/oar.log"
    cp -a /var/lib/oar "$BED/home" # keys, known hosts, locks
    cp /etc/oar/job_resource_manager_cgroups.pl "$BED/manager.pl"
    if [[ -n ${MEMORY:-} ]]; then
        sed -i "s#^my \$Enable_mem_cg = .*#my \$Enable_mem_cg = \"YES\";#; s#\"/proc/meminfo\"#\"$BED/meminfo\"#" "$BED/manager.pl"
        echo "MemTotal: $((MEMORY * 1024 * $(nproc))) kB" >"$BED/meminfo"
    fi
    export source=$here/../.. prefix packages name
    read -r prefix packages name < <("${PYTHON:-python3}" -c 'import sys, sysconfig
print(sys.base_prefix, sysconfig.get_path("purelib"), "python%d.%d" % sys.version_info[:2])')
    mkdir "$BED"/{source,python,packages}
    printf '#!/bin/sh\nPYTHONPATH=%s exec %s -m colmet.commands.extract "$@"\n' \
        "$BED/source:$BED/packages" "$BED/python/bin/$name" >"$BED/colmet-extract"
    chmod 755 "$BED/colmet-extract"
    make_namespaces 'mount --bind "$BED/oar.conf" /etc/oar/oar.conf; mount --bind "$BED/home" /var/lib/oar
        mount --bind "$BED/manager.pl" /etc/oar/job_resource_manager_cgroups.pl
        mount --bind "$source" "$BED/source"
        mount --bind "$prefix" "$BED/python"
        mount --bind "$packages" "$BED/packages"'
}

start_database() {
    local bin
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    install -d -o postgres "$BED/database"
    inside install -d -o postgres /run/postgresql
    inside runuser -u postgres -- "$bin/initdb" --auth trust --no-sync "$BED/database" >"$BED/initdb.log" 2>&1
    daemon postgresql runuser -u postgres -- "$bin/postgres" -D "$BED/database" -c fsync=off
    until_true 30 inside "$bin/pg_isready" -h 127.0.0.1 || die "PostgreSQL does not start"
    inside oar-database --create --db-host=127.0.0.1 --db-admin-user=postgres --db-admin-pass=any \
        >"$BED/oar-database.log" 2>&1 || die "no database"
}

start_node() {
    inside mkdir /run/sshd
    daemon sshd /usr/sbin/sshd -D -e -f /etc/oar/sshd_config -o ListenAddress=127.0.0.1
    until_true 20 inside runuser -u oar -- ssh -p 6667 localhost true || die "user oar has no ssh to localhost"
}

start_second_node() {
    echo "127.0.0.2 node2" >>"$BED/hosts"
    daemon node2 unshare --mount --propagation private bash -euc '
        for tree in /sys/fs/cgroup/{cpuset,cpu,cpuacct,devices,freezer,memory,blkio}; do
            mkdir -p "$tree/colmet-node2"
            [[ $tree != */cpuset ]] || for file in cpuset.cpus cpuset.mems; do
                cat "$tree/$file" >"$tree/colmet-node2/$file"
            done
            mount --bind "$tree/colmet-node2" "$tree"
        done
        echo $$ >"$BED/node2.pid"
        exec /usr/sbin/sshd -D -e -f /etc/oar/sshd_config -o ListenAddress=127.0.0.2 -o PidFile=none'
    until_true 20 inside runuser -u oar -- ssh -p 6667 node2 true || die "user oar has no ssh to node2"
}

# Its packaged configuration is for a host of its own under suexec; here all of Apache is OAR's user. What refuses that
# which a shell would obey is what docs/sites/oar.md has.
start_api() {
    local module
    {
        printf '%s\n' "ServerName localhost" "ServerRoot $BED" "PidFile $BED/httpd.pid" "ErrorLog $BED/httpd.log" \
            "DefaultRuntimeDir $BED" "ScriptSock /run/cgi" "Listen 127.0.0.1:6668" "User oar" "Group oar"
        for module in mpm_event authz_core authz_host alias env cgid rewrite; do
            echo "LoadModule ${module}_module /usr/lib/apache2/modules/mod_$module.so"
        done
        printf '%s\n' "ScriptAlias /oarapi /usr/lib/cgi-bin/oarapi/oarapi.cgi" "<Directory /usr/lib/cgi-bin/oarapi>" \
            "SetEnv OARCONFFILE /etc/oar/oar.conf" "Require local" "</Directory>"
        sed -n '/^ *```apache$/,/^ *```$/{/```/!p}' "$here/../../docs/sites/oar.md"
    } >"$BED/httpd.conf"
    daemon apache apache2 -f "$BED/httpd.conf" -D FOREGROUND
    until_true 20 inside bash -c ': </dev/tcp/127.0.0.1/6668' || die "OAR's API does not start"
}

alive() { [[ $(inside oarnodes -s | grep -c ': Alive') -eq $((resources * ${#names[@]})) ]]; }
start_server() {
    local core node
    daemon server oar-server
    until_true 30 inside bash -c ': </dev/tcp/localhost/6666' || die "the server does not start"
    for node in "${names[@]}"; do
        for ((core = 0; core < resources; core++)); do
            inside oarnodesetting -a -h "$node" -p cpuset=$((core % $(nproc))) >>"$BED/resources.log" 2>&1
        done
    done
    until_true 60 alive || die "a node does not come alive"
}

up() {
    prepare oar-server oar-server-pgsql oar-user oar-user-pgsql oar-node postgresql openssh-server taktuk \
        oar-restful-api apache2-bin curl iproute2 procps
    ! pgrep -f 'oar/(sshd_config|Almighty)' >/dev/null || die "an OAR runs on this machine already"
    touch "$BED/alone" # so the cgroups are this one's
    configure
    start_database
    start_node
    [[ -z ${TWO_NODES:-} ]] || start_second_node
    start_server
    start_api
    ready
}

job_submit() {
    local said
    said=$(cd / && as_user oarsub -O /dev/null -E /dev/null "$@" 2>&1) || die "oarsub: $said"
    sed -n 's/^OAR_JOB_ID=//p' <<<"$said" | grep . || die "oarsub: $said"
}
job_state() { inside oarstat -s -j "$1" | sed 's/.*: *//'; }
job_over() { [[ $(job_state "$1") =~ ^(Terminated|Error)$ ]]; }
job_wait() {
    until_true "${2:-120}" job_over "$1" || die "job $1 is $(job_state "$1") still"
    job_state "$1"
}
job_delete() { as_user oardel "$1"; }
job_get() {
    inside curl -sS -o "$2" -w '%{http_code} %{content_type}\n' -H 'Accept: application/x-gzip' -H "X-Remote-Ident: $user" \
        "http://127.0.0.1:6668/oarapi$1"
}

remove_what_jobs_left() {
    remove_cgroups /sys/fs/cgroup/*/{colmet-node2,oar}
    rm -rf "$links" /dev/cpuset
}

down() {
    # No state is kept, so nobody waits for OAR to end its jobs in order, for which it needs half a minute. PostgreSQL would
    # leave shared memory if it were killed.
    [[ ! -e $BED/alone ]] || cat /sys/fs/cgroup/cpuset/oar/*_*/cgroup.procs 2>/dev/null | xargs -r kill -9 || true
    if [[ -e $BED/node2.pid ]]; then
        cat /sys/fs/cgroup/cpuset/colmet-node2/oar/*_*/cgroup.procs 2>/dev/null | xargs -r kill -9 || true
        { members "$(<"$BED/node2.pid")"; cat "$BED/node2.pid"; } | xargs kill -9 || true
    fi
    stop remove_what_jobs_left
    rm -rf "$BED"
    say "down"
}

main "$@"
