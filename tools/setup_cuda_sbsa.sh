#!/bin/sh
# Makes build/cuda-sbsa: this machine's CUDA toolkit as a cross compiler for 64-bit Arm. The toolkit's tools and headers serve
# both machines; the run-time library for Arm comes from NVIDIA's package on PyPI, of the same version.
# Exit status 77: not to be had here (a line says why).
set -eu
cd "$(dirname "$0")/.."
root=$PWD/build/cuda-sbsa
nvcc=$(command -v nvcc || true)
if [ -z "$nvcc" ]; then
  echo "no nvcc on this machine"
  exit 77
fi
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')

[ "$(cat "$root/complete" 2>/dev/null)" = "$toolkit $version" ] && exit 0
rm -rf "$root"
target=$root/targets/sbsa-linux
mkdir -p "$root/bin" "$target/lib"
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux2014_aarch64 \
  -d "$root/wheel" "nvidia-cuda-runtime==$version.*" >"$root/pip.log" 2>&1; then
  echo "no CUDA $version for Arm in the package index: $(tail -n 1 "$root/pip.log")"
  exit 77
fi
python3 -m zipfile -e "$root"/wheel/*.whl "$root/wheel"
cp "$root"/wheel/nvidia/cu*/lib/libcudart_static.a "$root"/wheel/nvidia/cu*/lib/libcudadevrt.a "$target/lib/"
cp "$root"/wheel/nvidia/cu*/lib/libcudart.so.* "$target/lib/libcudart.so"
rm -r "$root/wheel"
ln -s "$toolkit"/bin/* "$root/bin/"
ln -s "$toolkit/nvvm" "$root/nvvm"
ln -s "$(readlink -f "$toolkit/include")" "$target/include"
ln -s sbsa-linux "$root/targets/aarch64-linux"  # CMake's name for it
echo "$toolkit $version" >"$root/complete"
