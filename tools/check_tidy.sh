#!/bin/bash
# clang-tidy over every source: a new one where it can be had, which takes a fourth of the time.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
tools/setup_tidy.sh || true  # without it the system's
export PATH=$PWD/build/clang-tidy:$PATH
need clang-tidy python3
cmake --preset release -B build/tidy  # for its compile_commands.json
python3 tools/tidy.py --jobs "$jobs" --build build/tidy
