#!/bin/bash
# clang-tidy over every source; on CI without the check that takes most of the time (--quick in tools/tidy.py).
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang-tidy python3
cmake --preset release -B build/tidy  # for its compile_commands.json
python3 tools/tidy.py --jobs "$jobs" --build build/tidy ${CI:+--quick}
