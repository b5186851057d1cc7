#!/bin/bash
# Builds the OCI images of the collector and of the node, from the Debian that this machine runs and Colmet's Debian packages,
# which it builds, too; puts both into DIR, as archives. What the build says is in DIR/build-oci.log.
#
# usage: build-oci.sh DIR    as root
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/building.sh
scripts/need.sh mmdebstrap umoci
mkdir -p "$1"
dir=$(cd "$1" && pwd)
scripts/build-debs.sh "$dir"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
arch=$(dpkg --print-architecture)
version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' colmet/__init__.py)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(source_time)}
mirrors=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' |
    awk -v release="$release" '!seen[$0]++ && index($2, release) == 1 { print "deb", $1, $2, "main" }')

# Users with the same numbers in each image: volumes outlive images.
mkdir "$work/sysusers.d"
sed 's/^u colmet-node -/u colmet-node 950/' packaging/sysusers/colmet-node.conf >"$work/sysusers.d/colmet-node.conf"
sed 's/^u colmet -/u colmet 951/; s/^u colmet-web -/u colmet-web 952/; s/^u colmet-notices -/u colmet-notices 953/' \
    packaging/sysusers/colmet.conf >"$work/sysusers.d/colmet-collector.conf"

# image NAME USER VOLUMES [PACKAGE...]
image() {
    local name=$1 user=$2 volumes=$3 layout=$work/$1 volume
    shift 3
    # keys are each site's own; what is for people, or for building, stays away
    mmdebstrap --variant=apt --dpkgopt=force-unsafe-io --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --include="systemd-standalone-sysusers,systemd-standalone-tmpfiles,$(IFS=,; echo "$*")" \
        --essential-hook="copy-in $work/sysusers.d /etc" \
        --customize-hook="copy-in $(echo "$dir"/colmet-common_*.deb "$dir/$name"_*.deb) /tmp" \
        --customize-hook='chroot "$1" sh -c "apt-get install -y --no-install-recommends /tmp/*.deb"' \
        --customize-hook='rm -rf "$1"/tmp/*.deb "$1"/etc/colmet/keys "$1"/etc/hostname "$1"/etc/resolv.conf' \
        --customize-hook="for place in ${volumes//,/ }; do chroot \"\$1\" install -d -o $user -g $user -m 755 \"\$place\"; done" \
        --customize-hook='find "$1"/var/log "$1"/var/cache -type f -delete' \
        "$release" "$work/$name.tar" <<<"$mirrors"
    umoci init --layout "$layout"
    umoci new --image "$layout:$name"
    umoci raw add-layer --image "$layout:$name" "$work/$name.tar"
    local config=(--config.user "$user" --config.workingdir / --clear=config.cmd)
    config+=(--config.entrypoint "/usr/bin/$name" --config.entrypoint --config
        --config.entrypoint "/etc/colmet/${name#colmet-}.toml")
    config+=(--config.env PATH=/usr/sbin:/usr/bin:/sbin:/bin --config.env LANG=C.UTF-8)
    for volume in ${volumes//,/ }; do config+=(--config.volume "$volume"); done
    umoci config --image "$layout:$name" --created "$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" \
        --architecture "$arch" --os linux "${config[@]}" \
        --config.label "org.opencontainers.image.title=$name" --config.label "org.opencontainers.image.version=$version" \
        --config.label org.opencontainers.image.licenses=GPL-3.0-or-later
    umoci gc --layout "$layout"
    rm -f "$dir/$name"_*.oci.tar
    tar -c --sort=name --owner=0 --group=0 --mtime="@$SOURCE_DATE_EPOCH" -C "$layout" -f "$dir/${name}_${version}_$arch.oci.tar" .
}

set -E
trap 'tail -n 20 "$dir/build-oci.log" >&3; echo "build-oci: failed; all that was said is in $dir/build-oci.log" >&3' ERR
exec 3>&2 4>&1 >"$dir/build-oci.log" 2>&1 </dev/null
image colmet-node colmet-node /run/colmet,/var/spool/colmet,/var/lib/colmet-node
image colmet-collector colmet /run/colmet,/var/lib/colmet python3-fastapi python3-rich python3-uvicorn
ls "$dir"/colmet-*.oci.tar >&4
