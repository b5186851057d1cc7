#!/bin/bash
# Builds the C libraries of the backends that have one. A library that does not build leaves its backend out and
# nothing else, so that is a warning.
set -euo pipefail
cd "$(dirname "$0")/.."

shopt -s nullglob
makefiles=(colmet/node/backends/lib_*/Makefile)
[[ ${#makefiles[@]} -gt 0 ]] || exit 0

if ! command -v cc >/dev/null; then
    scripts/need.sh gcc libc6-dev || { echo "setup: warning: C libraries not built: no C compiler" >&2; exit 0; }
fi
for makefile in "${makefiles[@]}"; do
    lib=${makefile%/Makefile}
    said=$(make -s --no-print-directory -C "$lib" 2>&1) ||
        printf '%s\nsetup: warning: %s did not build; its backend will be unavailable\n' "$said" "$lib" >&2
done
