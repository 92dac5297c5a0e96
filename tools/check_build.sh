#!/bin/bash
# The release build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
tools/setup_python.sh || true  # without it the Python package is not built, which CMake then says
tools/setup_disassembler.sh || true  # without it the test of the kernels' machine code is skipped
# The codes for SM12x come from the same sources: on a CI machine without a GPU, one stands for all.
one=OFF
if [ -n "${CI:-}" ] && ! command -v nvidia-smi >/dev/null; then one=ON; fi
cmake --preset release -DMOESAIC_ONE_SM12X=$one
build release
echo "build/release"
