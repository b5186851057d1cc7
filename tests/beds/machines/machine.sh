#!/bin/bash
# Whole machines with the kernel, systemd and Python of other Debians, by qemu: with KVM where the processor shows it, else
# emulated, where counts are valid and times are not. As root, on a Debian.
#
#   machine.sh image IMAGE [PACKAGE...]     make IMAGE where it is missing, with packages beside its own; IMAGE: see below
#   machine.sh install IMAGE                install this tree's Colmet in it: by packages, or by pip as docs/install.md has it
#   machine.sh start NAME IMAGE [WORD...]   boot a machine on a new copy of an image; WORD: for the kernel's command line
#   machine.sh boot NAME [WORD...]          boot one that was stopped or cut, with its disk as it is
#   machine.sh run NAME COMMAND...          run a command of the shell in it, as root
#   machine.sh put NAME FROM TO             copy a file or a folder into it
#   machine.sh get NAME FROM TO             copy a file or a folder out of it
#   machine.sh stop NAME                    shut it down
#   machine.sh cut NAME                     cut its power: what it has not written to its disk is lost
#   machine.sh drop NAME                    cut its power and remove its disk
#   machine.sh list                         name, address, state of all
#   machine.sh clean                        drop all machines and remove all images
#
# IMAGE: bullseye, bookworm, bookworm-backports (its newer kernel), trixie, forky, sid.
# Machines see each other in 10.77.0.0/24 (eth1), commands come by eth0, and 10.0.2.2 is this machine. MACHINES: the
# directory of all (some 3 GB an image). CPUS (2), MEMORY (1024, MB), FORWARD ("5556:5556": a port here and its own),
# DISKS (more disks, as qemu's -drive has their files), NICE (15): of a machine that starts.
set -euo pipefail
export LANG=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
MACHINES=${MACHINES:-${TMPDIR:-/tmp}/colmet-machines}
top=$(cd "$(dirname "$0")/../../.." && pwd)
PACKAGES=(systemd systemd-sysv dbus udev kmod zstd initramfs-tools openssh-server iproute2 procps python3 python3-venv)

say() { echo "machine.sh: $*" >&2; }
die() { say "$@"; exit 1; }
cannot() { say "$@"; exit 77; }
usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0" >&2; exit 2; }

# -- images --

release() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release; }
mirror() { # where this machine has its packages from
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Origin: Debian' |
        awk -v release="$(release)" '$2 == release { print $1; exit }'
}

in_root() { # in the image's root, with apt and pip as they are set up here
    local settings
    mapfile -t settings < <(env | grep -E '^(PIP_|https?_proxy=)')
    unshare --mount --pid --fork --propagation private bash -euc 'root=$1; shift
        mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
        [[ ! -d ${PIP_FIND_LINKS:-} ]] || { mkdir -p "$root$PIP_FIND_LINKS"; mount --bind "$PIP_FIND_LINKS" "$root$PIP_FIND_LINKS"; }
        exec chroot "$root" "$@"' sh "$root" \
        env -i "PATH=$PATH" HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "${settings[@]}" bash -euc "$1"
}
in_root_of_image() { # no daemon is started meanwhile
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    in_root "$1" >>"$image/log" 2>&1 || { tail -n 25 "$image/log" >&2; die "failed in $root: $1"; }
    rm "$root/usr/sbin/policy-rc.d"
}

alone() { exec 8>"$image.lock" && flock 8; } # on an image

make_image() {
    local suite=${name%-backports} kernel=linux-image-amd64 from source script=()
    [[ ! -e $image/made ]] || { add_packages "$@"; return; }
    from=$(mirror)
    [[ -n $from ]] || cannot "no mirror of Debian among apt's sources"
    rm -rf --one-file-system "$image"
    mkdir -p "$image"
    [[ -e /usr/share/debootstrap/scripts/$suite ]] || script=(/usr/share/debootstrap/scripts/sid)
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$from" "${script[@]}" >"$image/log" 2>&1 ||
        { tail -n 5 "$image/log" >&2; die "debootstrap $suite failed"; }
    cp -L /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/"
    cp -L /usr/share/keyrings/debian* "$root/usr/share/keyrings/"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    for source in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [[ ! -e $source ]] || cp -L --remove-destination "$source" "$root$source"
    done
    echo "deb $from $suite main" >"$root/etc/apt/sources.list"
    if [[ $name == *-backports ]]; then
        echo "deb $from $name main" >>"$root/etc/apt/sources.list"
        kernel="-t $name $kernel"
    fi
    mkdir -p "$root/etc/initramfs-tools/conf.d" # of the modules that these machines need alone, which load ten times as fast
    echo MODULES=list >"$root/etc/initramfs-tools/conf.d/machine"
    printf '%s\n' virtio_pci virtio_blk virtio_net ext4 crc32c crc32c_generic >"$root/etc/initramfs-tools/modules"
    in_root_of_image "apt-get -q update
        apt-get -qy --no-install-recommends -o DPkg::Options::=--force-confold -o DPkg::Options::=--force-unsafe-io install ${PACKAGES[*]}
        apt-get -qy --no-install-recommends -o DPkg::Options::=--force-unsafe-io install $kernel; apt-get clean"
    set_up_network
    touch "$image/made"
    add_packages "$@"
}

add_packages() { # to an image that is there; Slurm's daemons are started by the test that has their configuration
    local states
    states=$(chroot "$root" dpkg-query -W -f '${db:Status-Status}\n' "$@" 2>/dev/null) || states=missing
    if (($#)) && grep -qvx installed <<<"$states"; then
        in_root_of_image "apt-get -q update; apt-get -qy --no-install-recommends -o DPkg::Options::=--force-unsafe-io install $*; apt-get clean"
    fi
    (($# == 0)) || in_root_of_image "systemctl -q disable slurmctld slurmd munge 2>/dev/null || true"
}

set_up_network() {
    mkdir -p -m 700 "$root/root/.ssh"
    cp "$MACHINES/key.pub" "$root/root/.ssh/authorized_keys"
    : >"$root/etc/fstab" # / is mounted as the kernel's command line has it; systemd would wait for its device
    cat >"$root/usr/local/sbin/machine-network" <<'END'
#!/bin/sh
until [ -e /sys/class/net/eth1 ]; do sleep 0.2; done
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip link set eth1 up
ip address add "$(sed -n 's/.*machine.address=\([^ ]*\).*/\1/p' /proc/cmdline)" dev eth1
END
    chmod 755 "$root/usr/local/sbin/machine-network"
    cat >"$root/etc/systemd/system/machine-network.service" <<'END'
[Unit]
DefaultDependencies=no
Wants=network.target
Before=network.target network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/machine-network
[Install]
WantedBy=multi-user.target
END
    in_root_of_image "systemctl -q enable machine-network ssh; passwd -q -d root
        systemctl -q mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer man-db.timer dpkg-db-backup.timer e2scrub_reap.service \\
            modprobe@{configfs,dm_mod,drm,fuse,loop}.service systemd-logind.service getty@tty1.service serial-getty@ttyS0.service"
}

block() { sed -n "/^\`\`\`sh $1\$/,/^\`\`\`\$/{/^\`\`\`/d; p}" "$top/docs/install.md"; } # of commands

install_colmet() { # a copy of what git has, where docs/install.md runs its commands
    [[ -e $image/made ]] || die "no image $name: machine.sh image $name"
    local source=$root/root/colmet
    rm -rf "$source" "$image/image" "$image/kernel" "$image/initrd"
    mkdir -p "$source"
    (cd "$top" && . scripts/building.sh && copy_source "$source" && rm -rf "$source/tests/beds")
    if [[ ${name%-backports} == "$(release)" ]]; then
        (cd "$top" && scripts/build-debs.sh "$source/dist") >"$image/packages.log" 2>&1 || { cat "$image/packages.log" >&2; die "no packages"; }
        in_root_of_image "cd /root/colmet; apt-get -qy -o DPkg::Options::=--force-unsafe-io --no-install-recommends --reinstall install ./dist/colmet-{common,node,collector}_*.deb"
    else
        (cd "$top" && scripts/build-wheel.sh "$source/dist" /usr/bin/python3) >"$image/packages.log" 2>&1 || { cat "$image/packages.log" >&2; die "no wheel"; }
        in_root_of_image "cd /root/colmet; $(block pip | sed 's/\[tools,web\]//')
            /opt/colmet/bin/pip install --no-deps --force-reinstall dist/colmet-*.whl
            $(block pip-units | sed '/daemon-reload/d; s/enable --now/enable/')"
    fi
    in_root_of_image "systemctl -q disable colmet-node colmet-collector colmet-collector.socket colmet-web 2>/dev/null || true"
    rm -rf "$source"
    truncate -s 5G "$image/image"
    mke2fs -q -F -t ext4 -d "$root" "$image/image"
    cp "$(ls -t "$root"/boot/vmlinuz-* | head -n 1)" "$image/kernel"
    cp "$(ls -t "$root"/boot/initrd.img-* | head -n 1)" "$image/initrd"
}

# -- machines --

pid_of() { local pid; pid=$(cat "$here/pid" 2>/dev/null) && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "file=$here/disk," && echo "$pid"; }
in_machine() {
    ssh -F none -i "$MACHINES/key" -p $((22000 + $(<"$here/number"))) -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
        -o "ConnectTimeout=${PATIENCE:-60}" -o ServerAliveInterval=20 -o ServerAliveCountMax=6 -o ControlMaster=auto -o ControlPersist=600 \
        -o "ControlPath=$here/ssh" root@127.0.0.1 "$@"
}

new_machine() {
    image=$MACHINES/images/$1
    [[ -f $image/image ]] || die "Colmet is not installed in image $1: machine.sh install $1"
    drop
    mkdir -p "$here"
    ln "$image/image" "$image/kernel" "$image/initrd" "$here/" # these stay as they are when Colmet is installed again
    qemu-img create -q -f qcow2 -F raw -b "$here/image" "$here/disk"
    (
        flock 9
        last=$(cat "$MACHINES/last" 2>/dev/null || echo 10)
        echo $(((last - 10) % 200 + 11)) >"$here/number"
        cp "$here/number" "$MACHINES/last"
    ) 9>"$MACHINES/lock"
}

boot() {
    [[ -f $here/disk ]] || die "no machine $name: machine.sh start $name IMAGE"
    [[ -z $(pid_of) ]] || die "$name runs"
    local number processor port disk forward='' disks=() began=$SECONDS
    number=$(<"$here/number")
    for port in ${FORWARD:-}; do forward+=",hostfwd=tcp:127.0.0.1:${port%:*}-:${port#*:}"; done
    for disk in ${DISKS:-}; do disks+=(-drive "file=$disk,if=virtio,format=raw"); done
    processor=(-accel "tcg,thread=multi,tb-size=512" -cpu Westmere)
    if grep -qwE 'vmx|svm' /proc/cpuinfo && [[ -w /dev/kvm ]]; then processor=(-accel kvm -cpu host); fi
    rm -f "$here/ssh" "$here/pid"
    nice -n "${NICE:-15}" qemu-system-x86_64 -name "$name" "${processor[@]}" -smp "${CPUS:-2}" -m "${MEMORY:-1024}" -daemonize -pidfile "$here/pid" \
        -display none -serial "file:$here/console" -no-reboot -kernel "$here/kernel" -initrd "$here/initrd" \
        -append "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off systemd.hostname=$name machine.address=10.77.0.$number/24 $*" \
        -drive "file=$here/disk,if=virtio,format=qcow2" "${disks[@]}" -device virtio-rng-pci \
        -netdev "user,id=u,hostfwd=tcp:127.0.0.1:$((22000 + number))-:22$forward" -device virtio-net-pci,netdev=u,mac="$(printf 52:54:00:00:00:%02x "$number")" \
        -netdev socket,id=s,mcast=239.77.0.1:22977,localaddr=127.0.0.1 -device virtio-net-pci,netdev=s,mac="$(printf 52:54:00:00:01:%02x "$number")" \
        8>&- 9>&- 2>"$here/qemu.log" || { tail -n 5 "$here/qemu.log" >&2; die "qemu does not start $name"; }
    until PATIENCE=5 in_machine true 2>/dev/null; do
        [[ -n $(pid_of) ]] || { tail -n 20 "$here/console" >&2; die "$name ended while it booted"; }
        ((SECONDS < began + 600)) || { tail -n 20 "$here/console" >&2; die "$name does not answer"; }
        sleep 1
    done
    echo "10.77.0.$number $((SECONDS - began)) s $(in_machine uname -r)"
}

cut() {
    local pid
    ! pid=$(pid_of) || { kill -9 "$pid"; while [[ -d /proc/$pid ]]; do sleep 0.05; done; }
    rm -f "$here/pid" "$here/ssh"
}

stop() {
    local end=$((SECONDS + 120))
    [[ -n $(pid_of) ]] || return 0
    in_machine systemctl poweroff >/dev/null 2>&1 || true
    while [[ -n $(pid_of) ]] && ((SECONDS < end)); do sleep 0.5; done
    [[ -z $(pid_of) ]] || say "$name does not shut down, and is cut"
    cut
}

drop() { [[ ! -d $here ]] || { cut; rm -rf "$here"; }; }

each() { for here in "$MACHINES"/machines/*/; do here=${here%/} name=$(basename "$here"); [[ ! -f $here/number ]] || "$@"; done; }
state() { echo "$name 10.77.0.$(<"$here/number") $(pid_of >/dev/null && echo "runs, pid $(pid_of)" || echo stopped)"; }

[[ $EUID -eq 0 ]] || cannot "needs root"
verb=${1:-} name=${2:-}
shift $(($# < 2 ? $# : 2))
here=$MACHINES/machines/$name image=$MACHINES/images/$name root=$MACHINES/images/$name/root
mkdir -p "$MACHINES/machines" "$MACHINES/images"
[[ -f $MACHINES/key ]] || ssh-keygen -q -t ed25519 -N '' -f "$MACHINES/key"
case $verb in
    image) "$top/scripts/need.sh" debootstrap openssh-client && alone && make_image "$@" ;;
    install) alone && install_colmet ;;
    start) "$top/scripts/need.sh" qemu-system-x86 qemu-utils && new_machine "$1" && shift && boot "$@" ;;
    boot) boot "$@" ;;
    run) in_machine "$*" ;;
    put) if [[ -d $1 ]]; then tar -C "$1" -c . | in_machine "mkdir -p '$2' && tar -C '$2' -x --no-same-owner"; else in_machine "cat >'$2'" <"$1"; fi ;;
    get) if in_machine "[ -d '$1' ]"; then mkdir -p "$2" && in_machine "tar -C '$1' -c ." | tar -C "$2" -x; else in_machine "cat '$1'" >"$2"; fi ;;
    stop | cut | drop) "$verb" ;;
    list) each state ;;
    clean) each drop && rm -rf --one-file-system "$MACHINES" ;;
    *) usage ;;
esac; exit
