#!/bin/bash
# Releases the version of colmet/__init__.py: checks tree, version and changelog, makes the tag, and builds the source
# distribution, the wheel and the Debian packages in dist/, with their checksums in dist/SHA256SUMS. They are built in a clone
# of the commit, with its time, so whoever builds the tag on the same system gets the same bytes.
#
# usage: release.sh [PYTHON]                    check, and print what would be done
#        release.sh --prepare VERSION [PYTHON]  set the version in source and changelog, record what is stable, commit
#        release.sh --do [PYTHON]               make the tag and the artefacts
#        release.sh --verify [PYTHON]           build the artefacts of this commit twice, in other places, and compare them
set -euo pipefail
cd "$(dirname "$0")/.."
mode=check
prepared=
case ${1:-} in
--do | --verify) mode=${1#--}; shift ;;
--prepare) mode=prepare; prepared=${2:?release: name the version: --prepare 1.2.3}; shift 2 ;;
esac
python=${1:-python3}
[[ $python != */* ]] || python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")

problems=0
problem() { echo "release: $*" >&2; problems=$((problems + 1)); }

is_clean() { [[ -z $(git status --porcelain) ]] || problem "the tree has changes that are not committed: git status"; }

# Builds all artefacts of this commit in a clone at $1 and puts them into $2.
build() {
    umask 022
    git clone -q . "$1"
    mkdir -p "$2"
    (cd "$1" && scripts/build-sdist.sh "$2" "$python" && scripts/build-wheel.sh "$2" "$python" && scripts/build-debs.sh "$2")
    (cd "$2" && sha256sum colmet*.tar.gz colmet*.whl colmet*.deb >SHA256SUMS)
}

if [[ $mode == prepare ]]; then
    is_clean
    [[ $problems == 0 ]] || exit 1
    sed -i "s/^__version__ = .*/__version__ = \"$prepared\"/" colmet/__init__.py
    before=$(git show HEAD:colmet/__init__.py | sed -nE 's/^__version__ = "(.*)"$/\1/p')
    git ls-files -z 'docs/*.md' | xargs -0 sed -i "s/\b${before//./\\.}\b/$prepared/g"
    sed -i "0,/^## \[Unreleased\]$/s//## [Unreleased]\n\n## [$prepared] - $(date -u +%F)/" CHANGELOG.md
    "$python" -m dev.stable tests/data/stable
    git add -A
    git commit -qm "version $prepared"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $mode == verify ]]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    build "$work/one" "$work/first"
    (export TZ=Asia/Tokyo LANG=C && build "$work/another-place" "$work/second")
    cat "$work/first/SHA256SUMS"
    (cd "$work/second" && sha256sum --quiet -c "$work/first/SHA256SUMS") || {
        echo "release: these differ when they are built again" >&2
        exit 1
    }
    echo "release: all are the same when they are built again"
    exit
fi

version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' colmet/__init__.py)
tag=v$version
is_clean
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?$ ]] ||
    problem "$version is no version to release: make release ARGS=\"--prepare 1.2.3\" sets it (or 1.2.3rc1)"
grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    problem "CHANGELOG.md has no heading \"## [$version] - YYYY-MM-DD\": rename that of [Unreleased]"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || problem "there is a tag $tag already"
if [[ $problems -gt 0 ]]; then
    exit 1
fi

for script in build-sdist.sh build-wheel.sh build-debs.sh; do
    echo "release: scripts/$script dist, in a clone"
done
echo "release: dist/SHA256SUMS"
echo "release: git tag -a $tag -m 'Colmet $version'"
if [[ $mode != do ]]; then
    echo "release: nothing was done; make release ARGS=--do does it, ARGS=--verify builds twice and compares"
    exit
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022
build "$work/colmet" "$PWD/dist"
git tag -a "$tag" -m "Colmet $version"
cat dist/SHA256SUMS
echo "release: push the tag: git push origin $tag"
