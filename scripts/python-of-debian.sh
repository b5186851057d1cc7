#!/bin/bash
# Makes a Python of a version that this machine's Debian lacks, of the packages of a later Debian, in a directory of its own,
# and prints its path. Nothing is installed: packages are unpacked, and the program is set to use the libraries beside it.
#
# usage: python-of-debian.sh VERSION DIR     (VERSION as 3.14; DIR is made)
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
mkdir -p "$2"
dir=$(realpath "$2")
suites=(testing sid) # the first that has this version
python=$dir/root/usr/bin/python$version

say() { printf 'setup: %s\n' "$*" >&2; }

exec 9>"$dir/lock"
flock 9
if "$python" -c '' 2>/dev/null; then
    echo "$python"
    exit 0
fi
command -v apt-get >/dev/null || { say "Python $version is not here, and without apt-get it cannot be fetched"; exit 1; }
# those behind patchelf build the packages that have no wheel for a new Python yet
scripts/need.sh patchelf gcc g++ libc6-dev pkg-config libhdf5-dev 9<&-

# a package manager of its own: its lists and an empty machine, and of this machine only the mirror and its keys
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | sort -u | head -n 1)
[[ -n $mirror ]] || { say "apt-get has no mirror of Debian, so Python $version cannot be fetched"; exit 1; }
mkdir -p "$dir"/apt/{lists/partial,cache/archives/partial,parts}
: >"$dir/apt/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
own=(
    -o Dir::State::Lists="$dir/apt/lists" -o Dir::State::Status="$dir/apt/status" -o Dir::Cache="$dir/apt/cache"
    -o Dir::Etc::SourceList="$dir/apt/sources.list" -o Dir::Etc::SourceParts="$dir/apt/parts"
    -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true -o Acquire::Languages=none
)
apt() { apt-get -q "${own[@]}" "$@" </dev/null 9<&- >>"$dir/log" 2>&1; }
: >"$dir/log"
for suite in "${suites[@]}"; do
    echo "deb [signed-by=$keys] $mirror $suite main" >"$dir/apt/sources.list"
    say "fetching Python $version of Debian $suite"
    if apt update && apt install -y --no-install-recommends --download-only "python$version-venv" "libpython$version-dev"; then
        rm -rf "$dir/root"
        mkdir "$dir/root"
        for package in "$dir"/apt/cache/archives/*.deb; do
            dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner --keep-directory-symlink -C "$dir/root"
        done
        break
    fi
done
rm -rf "$dir/apt"
[[ -x $python ]] || { tail -n 5 "$dir/log" >&2; say "no Debian suite of ${suites[*]} has Python $version ($dir/log)"; exit 1; }

# absolute paths of a machine where this would be installed
libraries=$(dirname "$(find "$dir/root/" -name 'libc.so.6' | head -n 1)")
loader=$(find "$dir/root/" -name 'ld-linux*.so.*' | head -n 1)
multiarch=$(uname -m)-linux-gnu
patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries:$dir/root/usr/lib/$multiarch" "$(realpath "$python")"
sed -i "s,'/usr/share/python-wheels/\?','$dir/root/usr/share/python-wheels'," "$dir"/root/usr/lib/python"$version"/_sysconfigdata*.py
cp -f "$dir/root/usr/include/$multiarch/python$version/pyconfig.h" "$dir/root/usr/include/python$version/"
"$python" -c 'import ssl, venv, ensurepip, ctypes, sqlite3' || { say "Python $version in $dir does not run"; exit 1; }
echo "$python"
