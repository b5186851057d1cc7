#!/bin/bash
# Builds the Debian packages colmet-common, colmet-node, colmet-collector and colmet-facility from this tree, for the
# Debian that this machine runs, and puts them in DIR. What the build says is in DIR/build.log.
#
# usage: build-debs.sh DIR
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/building.sh

mapfile -t needed < <(sed -n '/^Build-Depends:/,/^[A-Z][^ ]*: /{ s/^Build-Depends://; /^[A-Z]/d; p }' packaging/debian/control |
    tr ',' '\n' | sed 's/(.*//; s/ //g; s/^debhelper-compat$/debhelper/; /^$/d')
scripts/need.sh dpkg-dev gcc libc6-dev make "${needed[@]}"
mkdir -p "$1"
dir=$(cd "$1" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/colmet
copy_source "$tree"
cp -r packaging/debian "$tree/debian"
for daemon in node collector; do
    cp "packaging/systemd/colmet-$daemon.service" "$tree/debian/"
    cp "packaging/tmpfiles/colmet-$daemon.conf" "$tree/debian/colmet-$daemon.tmpfiles"
    cp "packaging/default/colmet-$daemon" "$tree/debian/colmet-$daemon.default"
done
cp packaging/sysusers/colmet-node.conf "$tree/debian/colmet-node.sysusers"
cp packaging/udev/colmet-node.rules "$tree/debian/colmet-node.udev"
cp packaging/systemd/colmet-facility.service "$tree/debian/"
cp packaging/default/colmet-facility "$tree/debian/colmet-facility.default"
cp packaging/sysusers/colmet.conf "$tree/debian/colmet-collector.sysusers"
cp packaging/sysusers/colmet-facility.conf "$tree/debian/colmet-facility.sysusers"

when=${SOURCE_DATE_EPOCH:-$(source_time)}
cat >"$tree/debian/changelog" <<CHANGELOG
colmet ($(package_version)) unstable; urgency=medium

  * See CHANGELOG.md.

 -- Colmet <colmet@localhost>  $(date -R -u -d "@$when")
CHANGELOG

# Debian's own Python and tools, whatever else is on PATH. Of build-essential, no compiler of C++ is needed.
(cd "$tree" && env PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg-buildpackage -b -us -uc --ignore-builtin-builddeps) >"$dir/build.log" 2>&1 </dev/null || {
    tail -n 20 "$dir/build.log" >&2
    echo "build-debs: failed; all that was said is in $dir/build.log" >&2
    exit 1
}
rm -f "$dir"/colmet-*.deb
mv "$work"/colmet-{common,node,collector,facility}_*.deb "$dir/"
ls "$dir"/colmet-*.deb
