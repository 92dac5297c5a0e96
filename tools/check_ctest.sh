#!/bin/bash
# The tests of the release build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
ctest --test-dir build/release --output-on-failure --no-tests=error --timeout 600 -j "$jobs" | summary
