#!/bin/bash
# Every test once more under clang's AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, but for those that
# take minutes of it with the code that others run: true shapes, and whether wrong results are seen. The fuzz stage uses
# the same build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang++
build asan
slow='Verify.SeesFaults*:Verify.TheCpuPasses:Verify.DenseAsMx:ChatCut.*:CompletionCut.*:BundledModel.BackendsAgree'
slow+=':CheckpointTest.OneExpertAndOneTokenKeepTheirRank:CheckpointTest.DummiesHaveTheTrueShapes'
export UBSAN_OPTIONS=print_stacktrace=1 GTEST_FILTER="-$slow"
ctest --test-dir build/asan -LE fuzz --output-on-failure --no-tests=error --timeout 900 -j "$jobs" | summary
