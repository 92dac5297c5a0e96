#!/bin/bash
# The tests of the release build. CI's machine is shared, and some tests are of a pace: there a test that fails is tried once more.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
ctest --test-dir build/release --output-on-failure --no-tests=error --timeout 600 -j "$jobs" ${CI:+--repeat until-pass:2} | summary
