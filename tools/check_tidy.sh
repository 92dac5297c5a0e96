#!/bin/bash
# clang-tidy over the sources, newest change first, until MOESAIC_TIDY_SECONDS (240; 0: no limit) are over. Files that
# are not reached are counted in the last line.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang-tidy git python3
[ -f build/release/compile_commands.json ] || cmake --preset release
python3 tools/tidy.py --jobs "$jobs" --seconds "${MOESAIC_TIDY_SECONDS:-240}" --build build/release
