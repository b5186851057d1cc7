#!/bin/bash
# Makes sure that Debian packages are installed: installs what is missing when run as root, otherwise names
# the line that does.
#
# usage: need.sh PACKAGE...
set -euo pipefail

# Ends all where nothing is missing.
look() {
    missing=()
    for package; do
        [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *"ok installed" ]] || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || exit 0
}
look "$@"

if ! command -v apt-get >/dev/null; then
    echo "setup: this machine has no apt-get; install what it calls: ${missing[*]}" >&2
    exit 1
fi

if [[ $EUID -ne 0 ]]; then
    sudo=
    ! command -v sudo >/dev/null || sudo="sudo "
    line="${sudo}apt-get install -y ${missing[*]}"
    # a fresh image has no package lists
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || line="${sudo}apt-get update && $line"
    echo "setup: missing system package(s): ${missing[*]}. As root, this installs them:" >&2
    echo "    $line" >&2
    exit 1
fi

# one at a time: apt-get waits for the lock of dpkg, but not for that of its lists
exec 7</var/lib/dpkg
flock 7
look "$@"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@" </dev/null 7<&- >"$log" 2>&1
}
install() { get install -y --no-install-recommends "${missing[@]}"; }

echo "setup: installing system package(s): ${missing[*]}" >&2
# the lists may be missing or name versions that the mirror no longer has
install || { get update && install; } || {
    tail -n 8 "$log" >&2
    echo "setup: apt-get could not install ${missing[*]}" >&2
    exit 1
}
