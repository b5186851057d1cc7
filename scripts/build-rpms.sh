#!/bin/bash
# Builds the RPM packages colmet-common, colmet-node, colmet-collector, colmet-facility and colmet-tools, and their source
# package, from this tree and the modules in packaging/constraints.txt, and puts them in DIR. They are for the version of
# PYTHON and the architecture of this machine. What the build says is in DIR/build-rpms.log.
#
# usage: build-rpms.sh DIR [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/building.sh
python=${2:-/usr/bin/python3}

rpm=()
command -v rpmbuild >/dev/null || rpm=(rpm) # of Debian; elsewhere rpm-build
need_to_build "$python" "${rpm[@]}"
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=$(realpath "$(command -v "$python")")

# Debian's rpm knows nothing of what dpkg has installed
nodeps=()
rpm -q gcc make >/dev/null 2>&1 || nodeps=(--nodeps)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(package_version)
when=${SOURCE_DATE_EPOCH:-$(source_time)}
mkdir "$work/SOURCES"
copy_source "$work/colmet-$version"
tar -c --sort=name --owner=0 --group=0 --mtime="@$when" -C "$work" "colmet-$version" | gzip -n >"$work/SOURCES/colmet-$version.tar.gz"

{
    "$python" -m venv "$work/venv" &&
        "$work/venv/bin/pip" --disable-pip-version-check install --require-hashes -r packaging/pip.txt &&
        "$work/venv/bin/pip" wheel --no-deps --require-hashes --build-constraint packaging/constraints.txt \
            --wheel-dir "$work/modules" -r packaging/constraints.txt &&
        abi=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') &&
        tar -c --sort=name --owner=0 --group=0 --mtime="@$when" -C "$work" \
            -f "$work/SOURCES/colmet-modules-$version-py$abi-$(rpm -E '%_arch').tar" modules &&
        rpmbuild -ba "${nodeps[@]}" --define "_topdir $work" --define "python $python" --define "colmet_version $version" \
            --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
            packaging/rpm/colmet.spec
} >"$dir/build-rpms.log" 2>&1 </dev/null || {
    tail -n 20 "$dir/build-rpms.log" >&2
    echo "build-rpms: failed; all that was said is in $dir/build-rpms.log" >&2
    exit 1
}
rm -f "$dir"/colmet-*.rpm
mv "$work"/RPMS/*/colmet-*.rpm "$work"/SRPMS/colmet-*.rpm "$dir/"
ls "$dir"/colmet-*.rpm
