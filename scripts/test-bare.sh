#!/bin/bash
# Runs the quick start of README.md, to the letter, in a bare Debian: shows a missing installation step, and what a place
# does not allow. The root directory is in /var/tmp, on a disk as that of most machines, and is removed at the end.
#
# usage: test-bare.sh [RELEASE [USER [PLACE]]]    as root
#   RELEASE  bookworm (default), trixie ...
#   USER     root (default) or another
#   PLACE    root (default): a root directory of its own, and all rights over the machine
#            chroot: the same without a mount point at /
#            container: an engine's default rights (podman as root): no CAP_NET_ADMIN, /sys read-only
#            uncounted: the same without a cgroup file system
#            rootless: as container in a user namespace: its root is an ordinary user of the machine
#            odd: as chroot, with spaces in the path, another time zone and locale, umask 077, a read-only home, one CPU,
#            and after the set-up neither network nor IPv6
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:-bookworm} user=${2:-root} place=${3:-root}
case $place in
    root | chroot | odd) needed=() ;;
    container | uncounted | rootless) needed=(podman runc conmon) ;;
    *) echo "test-bare: no such place: $place" >&2; exit 2 ;;
esac
scripts/need.sh mmdebstrap util-linux "${needed[@]}"

# The rest has a mount namespace of its own, so that all mounts end with it.
[[ ${COLMET_BARE:-} ]] || COLMET_BARE=1 exec unshare --mount --propagation private "$0" "$@"

root=$(mktemp -d -p /var/tmp colmet-bare.XXXXXX)
trap 'umount -R --lazy "$root"/{proc,sys,dev} "$root" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT

# A mount point, which `unshare --mount` in it needs.
[[ $place != root ]] || mount --bind "$root" "$root"

own=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirrors=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' |
    awk -v own="$own" -v release="$release" '$2 == own && !seen[$1]++ { print "deb", $1, release, "main" }')
mmdebstrap --quiet --variant=apt --dpkgopt=force-unsafe-io --include=ca-certificates \
    "$release" "$root" <<<"$mirrors"

# A site may have its own.
for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [[ ! -e $file ]] || cp -L "$file" "$root$file"
done
# An installer writes it.
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
source=/srv/colmet
[[ $place != odd ]] || source="/srv/colmet source"
git -c safe.directory='*' clone --quiet --no-hardlinks . "$root$source"
# As an archive is unpacked, without git.
[[ $place == root ]] || rm -rf "$root$source/.git"
mapfile -t quick_start < <(sed -n '/^```sh quick-start$/,/^```$/{//!p}' README.md)

environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 WORKERS="${WORKERS:-}" PACKAGES="${PACKAGES:-}" DEBIAN_FRONTEND=noninteractive)
mapfile -t -O "${#environment[@]}" environment < <(env | grep -E '^(PIP_|https?_proxy=|no_proxy=)' || true)
if [[ ${CI:-} ]]; then
    environment+=(CI="$CI")
    # What this place does not allow is no failure there.
    [[ $place == root && $user == root ]] || environment+=(COLMET_PLACE="$place")
fi

# inside COMMAND...: in the new root.
inside() {
    case $place in
        root) unshare --mount sh -c 'cd "$1" && shift && mount --move . / && exec chroot . "$@"' sh \
            "$root" env -i "${environment[@]}" "$@" ;;
        chroot | odd) env -i "${environment[@]}" chroot "$root" "$@" ;;
        container | uncounted | rootless) in_container env -i "${environment[@]}" "$@" ;;
    esac
}

# The rights that engines give by default. runc: crun refuses a machine with both versions of cgroups.
rights=CHOWN,DAC_OVERRIDE,FSETID,FOWNER,MKNOD,NET_RAW,SETGID,SETUID,SETFCAP,SETPCAP,NET_BIND_SERVICE,SYS_CHROOT,KILL,AUDIT_WRITE
in_container() {
    local options=()
    [[ $place != rootless ]] || options=(--uidmap "0:$first_id:65536" --gidmap "0:$first_id:65536")
    [[ $place != uncounted ]] || options=(--mount type=tmpfs,destination=/sys/fs/cgroup,ro)
    podman run --rm --runtime runc --cap-drop all --cap-add "$rights" "${options[@]}" --ulimit nofile=16384:16384 \
        --ulimit nproc=16384:16384 --rootfs "$root" "$@"
}

# The owners of files are numbers of the machine.
first_id=200000
shift_owners() {
    python3 - "$root" "$first_id" <<'PYTHON'
import os, stat, sys

top, first = sys.argv[1], int(sys.argv[2])
for folder, folders, files in os.walk(top):
    for name in [".", *files, *[name for name in folders if os.path.islink(os.path.join(folder, name))]]:
        path = os.path.join(folder, name)
        status = os.lstat(path)
        os.lchown(path, first + status.st_uid, first + status.st_gid)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(path, stat.S_IMODE(status.st_mode))
PYTHON
}

case $place in
    root | chroot | odd) for directory in proc sys dev; do mount --rbind "/$directory" "$root/$directory"; done ;;
    rootless) shift_owners ;;
esac

inside bash -ec 'apt-get update && apt-get install -y make passwd' >/dev/null
if [[ $user != root || $place == odd ]]; then
    # What root installs for all.
    inside bash -ec "cd '$source' && make venv clibs && apt-get install -y procps iproute2 man-db zsh locales >/dev/null"
fi
if [[ $user != root ]]; then
    inside useradd --create-home "$user"
    inside chown -R "$user" "$source"
fi
become=(runuser -u "$user" --)
if [[ $place == odd ]]; then
    inside localedef -i tr_TR -f UTF-8 tr_TR.UTF-8
    become=(unshare --net taskset -c 0 sh -c 'ip link set lo up; ip -6 address del ::1/128 dev lo; umask 077; exec "$@"' sh
        "${become[@]}" env HOME=/usr TZ=Pacific/Chatham LC_ALL=tr_TR.UTF-8)
fi
for command in "${quick_start[@]}"; do
    echo "---- $release, $user, $place: $command"
    inside "${become[@]}" bash -ec "cd '$source' && $command"
done
