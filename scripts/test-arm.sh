#!/bin/bash
# Runs tests on an emulated arm64: by default those of decoders, formats and the kernel's structures, with Python and modules of Debian's arm64
# packages, which are unpacked into .venvs/arm64 and run by qemu-user. The C libraries are built by a cross compiler.
#
# The kernel is this machine's, and the tests run as an ordinary user: the emulator has no netlink sockets of generic families. It
# cannot start emulated programs either; tests that do are left out.
#
# usage: test-arm.sh [PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/building.sh
suite=trixie
root=$PWD/.venvs/arm64/root
mkdir -p .venvs/arm64
scripts/need.sh qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross make

if [[ ! -e $root.made ]]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | sort -u | head -n 1)
    [[ -n $mirror ]] || { echo "test-arm: apt-get has no mirror of Debian" >&2; exit 1; }
    apt=.venvs/arm64/apt
    mkdir -p "$apt"/{lists/partial,cache/archives/partial,parts}
    : >"$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$apt/sources.list"
    own=(
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$PWD/$apt/lists"
        -o Dir::State::Status="$PWD/$apt/status" -o Dir::Cache="$PWD/$apt/cache" -o Dir::Etc::SourceList="$PWD/$apt/sources.list"
        -o Dir::Etc::SourceParts="$PWD/$apt/parts" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true
        -o Acquire::Languages=none
    )
    echo "test-arm: fetching Python of Debian $suite for arm64"
    apt-get -q "${own[@]}" update >.venvs/arm64/log 2>&1
    apt-get -q "${own[@]}" install -y --no-install-recommends --download-only python3 python3-hypothesis python3-msgpack \
        python3-numpy python3-pyinotify python3-pytest python3-requests python3-tables python3-zmq python3-yaml \
        python3-fastapi python3-httpx python3-uvicorn python3-rich python3-psutil python3-packaging >>.venvs/arm64/log 2>&1 </dev/null
    rm -rf "$root"
    mkdir -p "$root/usr/lib"
    ln -s usr/lib "$root/lib" # as base-files has it
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner --keep-directory-symlink -C "$root"
    done
    rm -rf "$apt"
    # else the emulated one compiles them, in minutes
    ! command -v python3.13 >/dev/null || python3.13 -m compileall -q "$root"/usr/lib/python3* >>.venvs/arm64/log || true
    touch "$root.made"
fi

# a copy of the tree, as its libraries are for another machine
tree=$PWD/.venvs/arm64/tree
rm -rf "$tree"
copy_source "$tree"
for folder in "$tree"/colmet/node/backends/lib_*/; do make -s -C "$folder" CC=aarch64-linux-gnu-gcc; done

libraries=$root/usr/lib/aarch64-linux-gnu
as_user=(env -u PYTHONDONTWRITEBYTECODE) # else each run compiles all modules under emulation
if [[ $EUID -eq 0 ]]; then
    chown -R 65534:65534 "$root" "$tree"
    as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups "${as_user[@]}" HOME=/nonexistent)
fi
python() {
    "${as_user[@]}" qemu-aarch64-static -L "$root" -E LD_LIBRARY_PATH="$libraries/blas:$libraries/lapack" "$root/usr/bin/python3" "$@"
}
cd "$tree"
python -c 'import platform, sys; print("test-arm:", platform.machine(), sys.byteorder, "Python", platform.python_version())'
if [[ $# -eq 0 ]]; then
    names=(exits forks kept_totals layouts netlink perfevents perfgroups procstats rapl spool state taskstats)
    formats=(fuzz_corpus link_wire record_log schema wire_colmet06 wire_colmet_rs wire_hostile wire_v1)
    set -- "${names[@]/#/tests/node/test_}" "${formats[@]/#/tests/common/test_}"
    # two hundred random batches need many minutes under emulation
    set -- "${@/%/.py}" -m "not live and not slow" -k "not its_way_over_the_wire"
fi
python -m pytest -q -p no:cacheprovider -o faulthandler_timeout=0 "$@"
