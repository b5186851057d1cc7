# What the scripts that build packages share: source, version, time, tools. Sourced by bash, in the top directory.

umask 022
export LC_ALL=C.UTF-8
unset PYTHONPATH PYTHONHOME MAKEFLAGS # of the caller's shell, or of the make that calls this
[[ ${TMPDIR:-} != *[[:space:]]* ]] || export TMPDIR=/tmp # tools of Debian and rpm cannot build in such a place

# copy_source DIR: the source, without what was built here. By names: an unpacked archive has no list of git, and git refuses
# root in a user's clone. Rights are the same, whatever the umask was when the source was unpacked.
copy_source() {
    mkdir -p "$1"
    find . -mindepth 1 \( -name '.*' -o -path ./build -o -path ./dist -o -name __pycache__ -o -name '*.egg-info' \) -prune \
        -o ! -type d ! -name '*.py[co]' ! -name '*.so' ! -name '*.o' -print0 |
        tar -c --null --ignore-failed-read --mode=u+rwX,go+rX,go-w -T - 2>/dev/null | tar -x --no-same-owner -C "$1"
}

# source_time: of the commit; in an archive, of a file, which has the commit's.
source_time() {
    { [[ -e .git ]] && git log -1 --format=%ct 2>/dev/null; } || stat -c %Y colmet/__init__.py
}

# package_version: 1.0.0rc1 becomes 1.0.0~rc1, which comes before 1.0.0.
package_version() {
    sed -nE 's/^__version__ = "(.*)"$/\1/p' colmet/__init__.py | sed -E 's/\.?(dev|a|b|rc)([0-9])/~\1\2/'
}

# need_to_build PYTHON [PACKAGE...]: a Python with venv, a C compiler, make, and more packages of Debian.
need_to_build() {
    local python=$1 missing=("${@:2}")
    if ! command -v "$python" >/dev/null && [[ ${python##*/} != python3 ]]; then
        echo "setup: there is no command $python; choose a Python with PYTHON=..." >&2
        return 1
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    gcc -fsyntax-only -x c - <<<'#include <stdio.h>' 2>/dev/null || missing+=(gcc libc6-dev)
    command -v make >/dev/null || missing+=(make)
    [[ ${#missing[@]} -eq 0 ]] || scripts/need.sh "${missing[@]}"
}
