#!/bin/bash
# The whole program with the CUDA backend for 64-bit Arm (GH200, DGX Spark), cross-compiled and linked. Under qemu-user it names
# its GPU code, says that there is no driver, and answers on the CPU. Too slow for make test.
#   tools/check_aarch64_cuda.sh [ARCHITECTURES]     as CMAKE_CUDA_ARCHITECTURES; 80-virtual, the least code, if none are given
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
[ "$(uname -m)" = aarch64 ] && skip "this machine is aarch64 itself"
need aarch64-linux-gnu-g++ qemu-aarch64 nvcc
tools/setup_aarch64.sh
tools/setup_cuda_sbsa.sh
configure_aarch64_cuda build/aarch64-cuda -DCMAKE_CUDA_ARCHITECTURES="${1:-80-virtual}"
cmake --build build/aarch64-cuda -j "$jobs" --target moesaic
moesaic() {
  qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$PWD/build/sysroot-aarch64/usr/lib/aarch64-linux-gnu" \
    build/aarch64-cuda/apps/moesaic "$@"
}
moesaic --version | tee build/aarch64-cuda/version
grep -q "^GPU code: " build/aarch64-cuda/version
moesaic inspect tiny | grep "cuda (absent"
moesaic run -m tiny -p "What is 17 + 25?" --temp 0 --device cpu | grep "17 + 25 = 42"
