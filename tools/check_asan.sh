#!/bin/bash
# Every test once more under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, but for those that look whether
# wrong results are seen, again and again through code that the others run.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
build asan
export UBSAN_OPTIONS=print_stacktrace=1 GTEST_FILTER='-Verify.SeesFaults*:ChatCut.*:CompletionCut.*'
ctest --test-dir build/asan --output-on-failure --no-tests=error --timeout 900 -j "$jobs" | summary
