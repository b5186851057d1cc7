#!/bin/bash
# Releases the version of colmet/__init__.py: checks tree, version and changelog, makes the tag, and builds the source
# distribution, the wheel and the Debian packages in dist/. Without --do it only checks, and prints what it would do.
#
# usage: release.sh [--do] [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
really=
[[ ${1:-} != --do ]] || { really=1; shift; }
python=${1:-python3}

problems=0
problem() { echo "release: $*" >&2; problems=$((problems + 1)); }

version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' colmet/__init__.py)
tag=v$version
[[ -z $(git status --porcelain) ]] || problem "the tree has changes that are not committed: git status"
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?$ ]] ||
    problem "$version is no version to release: set __version__ in colmet/__init__.py to 1.2.3 or 1.2.3rc1"
grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    problem "CHANGELOG.md has no heading \"## [$version] - YYYY-MM-DD\": rename that of [Unreleased]"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || problem "there is a tag $tag already"
if [[ $problems -gt 0 ]]; then
    exit 1
fi

steps=(
    "git tag -a $tag -m 'Colmet $version'"
    "scripts/build-sdist.sh dist $python"
    "scripts/build-wheel.sh dist $python"
    "scripts/build-debs.sh dist"
)
for step in "${steps[@]}"; do
    echo "release: $step"
    [[ -z $really ]] || eval "$step"
done
if [[ -z $really ]]; then
    echo "release: nothing was done; make release ARGS=--do does it"
else
    echo "release: push the tag: git push origin $tag"
fi
