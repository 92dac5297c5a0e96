#!/bin/sh
# Makes build/disassembler: cuobjdump and nvdisasm of NVIDIA's packages on PyPI, for the test of the CUDA kernels' machine code
# where the toolkit lacks them. Newer ones read the code of an older nvcc.
# Exit status 77: not to be had, or not needed here (a line says why).
set -eu
cd "$(dirname "$0")/.."
root=build/disassembler
packages="nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37"

if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo "no nvcc on this machine"
  exit 77
fi
if command -v cuobjdump >/dev/null || [ -x /usr/local/cuda/bin/cuobjdump ]; then
  echo "the toolkit has cuobjdump"
  exit 77
fi
exec tools/get_wheels.sh $root "$packages" "nvidia/cu*/bin/cuobjdump" "nvidia/cu*/bin/nvdisasm"
