#!/bin/bash
# Runs the quick start of README.md, to the letter, and `make test` in a bare Debian: shows a missing installation step.
# The root directory is in /var/tmp, on a disk as that of most machines, and is removed at the end.
#
# The address in the quick start leads to this source. Its last command, the demo, is for root of the machine.
#
# usage: test-bare.sh [RELEASE [USER [PLACE]]]    as root
#   RELEASE  bookworm (default), trixie ...
#   USER     root (default) or another
#   PLACE    root (default): a root directory of its own, the rest is the machine's; chroot: as chroot, which may not
#            make user namespaces; container: processes, host name and rights of its own, too (systemd-nspawn)
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:-bookworm} user=${2:-root} place=${3:-root}
scripts/need.sh mmdebstrap util-linux $([[ $place != container ]] || echo systemd-container)

# the rest has a mount namespace of its own, so that all mounts end with it
[[ ${COLMET_BARE:-} ]] || COLMET_BARE=1 exec unshare --mount --propagation private "$0" "$@"

root=$(mktemp -d -p /var/tmp colmet-bare.XXXXXX)
trap 'umount -R --lazy "$root"/{proc,sys,dev} "$root" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT

mount --bind "$root" "$root"  # a mount point, which `unshare --mount` in it needs

own=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirrors=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' |
    awk -v own="$own" -v release="$release" '$2 == own && !seen[$1]++ { print "deb", $1, release, "main" }')
mmdebstrap --quiet --variant=apt --dpkgopt=force-unsafe-io --include=ca-certificates \
    "$release" "$root" <<<"$mirrors"

if [[ $place == container ]]; then
    mkdir -p /run/systemd/nspawn
    mount -t tmpfs none /run/systemd/nspawn
else
    for directory in proc sys dev; do mount --rbind "/$directory" "$root/$directory"; done
fi
for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do # a site may have its own
    [[ ! -e $file ]] || cp -L "$file" "$root$file"
done
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"  # an installer writes it
git clone --quiet --no-hardlinks --bare . "$root/source.git"
mapfile -t quick_start < <(sed -n '/^```sh quick-start$/,/^```$/{//!p}' README.md)
address=$(grep -o 'https://[^ ]*' <<<"${quick_start[0]}")
printf '[url "/source.git"]\n\tinsteadOf = %s\n[safe]\n\tdirectory = *\n' "$address" >"$root/etc/gitconfig"

# inside COMMAND...: in the new root.
inside() {
    local environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
    environment+=(WORKERS="${WORKERS:-}")
    [[ -z ${CI:-} || $user != root || $place != root ]] || environment+=(CI="$CI")  # elsewhere some tests have to skip
    mapfile -t -O "${#environment[@]}" environment < <(env | grep -E '^(PIP_|https?_proxy=|no_proxy=)' || true)
    case $place in
        root) unshare --mount sh -c 'cd "$1" && shift && mount --move . / && exec chroot . "$@"' sh \
            "$root" env -i "${environment[@]}" "$@" ;;
        chroot) env -i "${environment[@]}" chroot "$root" "$@" ;;
        container) systemd-nspawn --quiet --register=no --keep-unit --as-pid2 --directory "$root" --console pipe \
            env -i "${environment[@]}" "$@" ;;
        *) echo "no such place: $place" >&2; return 2 ;;
    esac
}

inside bash -ec "${quick_start[0]}"
if [[ $user == root && $place == root ]]; then
    inside bash -ec "${quick_start[1]}"
fi
if [[ $user != root ]]; then # what root installs for all
    inside useradd --create-home "$user"
    inside make -C /colmet venv clibs
    inside chown -R "$user" /colmet
fi
inside runuser -u "$user" -- make -C /colmet test
