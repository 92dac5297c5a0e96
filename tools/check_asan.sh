#!/bin/bash
# Every test once more under clang's AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, but for those that
# look whether wrong results are seen, again and again through code that the others run. The fuzz stage uses the same build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang++
build asan
export UBSAN_OPTIONS=print_stacktrace=1 GTEST_FILTER='-Verify.SeesFaults*:ChatCut.*:CompletionCut.*'
ctest --test-dir build/asan -LE fuzz --output-on-failure --no-tests=error --timeout 900 -j "$jobs" | summary
