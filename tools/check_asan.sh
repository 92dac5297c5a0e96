#!/bin/bash
# Every test once more under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
build asan
export UBSAN_OPTIONS=print_stacktrace=1
ctest --test-dir build/asan --output-on-failure --no-tests=error --timeout 900 -j "$jobs" | summary
