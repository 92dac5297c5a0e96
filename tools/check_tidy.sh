#!/bin/bash
# clang-tidy over the sources, newest change first, until MOESAIC_TIDY_SECONDS (120; 0: no limit) are over. Files that
# are not reached are counted in the last line.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang-tidy git python3
cmake --preset release -B build/tidy  # for its compile_commands.json
python3 tools/tidy.py --jobs "$jobs" --seconds "${MOESAIC_TIDY_SECONDS:-120}" --build build/tidy
