#!/bin/bash
# Builds the Debian packages colmet-common, colmet-node, colmet-collector and colmet-facility from this tree, for the
# Debian that this machine runs, and puts them in DIR. What the build says is in DIR/build.log.
#
# usage: build-debs.sh DIR
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
mkdir -p "$1"
dir=$(cd "$1" && pwd)

mapfile -t needed < <(sed -n '/^Build-Depends:/,/^[A-Z][^ ]*: /{ s/^Build-Depends://; /^[A-Z]/d; p }' packaging/debian/control |
    tr ',' '\n' | sed 's/(.*//; s/ //g; s/^debhelper-compat$/debhelper/; /^$/d')
scripts/need.sh dpkg-dev fakeroot gcc libc6-dev make "${needed[@]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/colmet
mkdir "$tree"
git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C "$tree"
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
for package in collector facility; do
    cp packaging/sysusers/colmet.conf "$tree/debian/colmet-$package.sysusers"
done

# 1.0.0.dev0 comes before 1.0.0
version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' colmet/__init__.py | sed -E 's/\.?(dev|a|b|rc)([0-9])/~\1\2/')
when=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
cat >"$tree/debian/changelog" <<CHANGELOG
colmet ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- Colmet <colmet@localhost>  $(date -R -u -d "@$when")
CHANGELOG

# Debian's own Python and tools, whatever else is on PATH
(cd "$tree" && env PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg-buildpackage -b -us -uc) >"$dir/build.log" 2>&1 </dev/null || {
    tail -n 20 "$dir/build.log" >&2
    echo "build-debs: failed; all that was said is in $dir/build.log" >&2
    exit 1
}
rm -f "$dir"/colmet-*.deb
mv "$work"/colmet-{common,node,collector,facility}_*.deb "$dir/"
ls "$dir"/colmet-*.deb
