#!/bin/bash
# Each libFuzzer target for MOESAIC_FUZZ_SECONDS (5) seconds on top of its corpus, in the asan stage's build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang++
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
printf '#include <span>\nextern "C" int LLVMFuzzerTestOneInput(const unsigned char* d, std::size_t n) { return std::span(d, n).size() > n; }\n' >"$probe/probe.cpp"
clang++ -std=c++20 -fsanitize=fuzzer,address "$probe/probe.cpp" -o "$probe/probe" || skip "clang++ cannot link a libFuzzer target here"

cmake --preset asan "-DMOESAIC_FUZZ_SECONDS=${MOESAIC_FUZZ_SECONDS:-5}"
ctest --test-dir build/asan -N -L fuzz | grep -q 'Total Tests: 0' && skip "no fuzz targets in this tree"
cmake --build build/asan -j "$jobs" --target fuzzers
ctest --test-dir build/asan --output-on-failure --no-tests=error --timeout 300 -L fuzz -j "$jobs" | summary
