#!/bin/bash
# All host code built for 64-bit Arm; its unit tests run under qemu-user. Tests that run whole models are left to native
# machines: emulation makes minutes of their seconds.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
[ "$(uname -m)" = aarch64 ] && skip "this machine is aarch64 itself"
need aarch64-linux-gnu-g++ qemu-aarch64
tools/setup_aarch64.sh
build aarch64
# ctest emulates every extension (-cpu max); these two processors lack i8mm, then the dot product too.
for cpu in neoverse-n1 cortex-a53; do
  qemu-aarch64 -cpu $cpu -L /usr/aarch64-linux-gnu build/aarch64/src/backend/cpu/cpu_backend_test --gtest_brief=1
done
export GTEST_FILTER='-BundledModel.BackendsAgree'
ctest --test-dir build/aarch64 -E '^(model|model_golden|engine|cli|server|structured_output|answer_cut|session|alloc)_test$' --output-on-failure --no-tests=error --timeout 900 -j "$jobs" | summary
