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
[ "$(cat $root/complete 2>/dev/null)" = "$packages" ] && exit 0
rm -rf $root
mkdir -p $root
# shellcheck disable=SC2086
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d $root/wheels $packages >$root/pip.log 2>&1; then
  echo "no cuobjdump in the package index: $(tail -n 1 $root/pip.log)"
  exit 77
fi
for wheel in $root/wheels/*.whl; do python3 -m zipfile -e "$wheel" $root/wheels; done
mv $root/wheels/nvidia/cu*/bin/cuobjdump $root/wheels/nvidia/cu*/bin/nvdisasm $root
chmod +x $root/cuobjdump $root/nvdisasm
rm -r $root/wheels
echo "$packages" >$root/complete
