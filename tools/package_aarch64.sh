#!/bin/bash
# Packages for 64-bit Arm made on an x86-64 machine, with CUDA where there is nvcc: cross-compiled, and packed in a clean root of
# this machine's distribution, in which dpkg knows the arm64 libraries. They are in build/aarch64-package/packages;
# tools/try_package.sh SUITE FILE arm64 tries them.
#   tools/package_aarch64.sh [CMAKE OPTION...]     -DMOESAIC_ALL_GPUS=ON: as a release
# Needs root for the clean root; exit status 77: what it needs is not to be had here.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh && . tools/clean_root.sh
architecture=$(dpkg --print-architecture) folder=build/aarch64-package root=$PWD/build/roots/pack-$$ shared=$PWD
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ "$architecture" = arm64 ] && skip "this machine is aarch64 itself: make package"
need aarch64-linux-gnu-g++ cmake
tools/setup_aarch64.sh
if command -v nvcc >/dev/null; then
  tools/setup_cuda_sbsa.sh
  configure_aarch64_cuda $folder -DCMAKE_BUILD_TYPE=Release "$@"
else
  cmake --preset aarch64 -B $folder -DCMAKE_BUILD_TYPE=Release -DMOESAIC_TESTS=OFF "$@"
fi
cmake --build $folder -j "$jobs" --target moesaic_whole pages
clean_root
inside sh -c 'dpkg --add-architecture arm64 && apt-get update -qq && apt-get install -y -qq --no-install-recommends cmake dpkg-dev file gzip \
  binutils-aarch64-linux-gnu libc6:arm64 libstdc++6:arm64 libfmt-dev:arm64 libpcre2-dev:arm64 libedit-dev:arm64' >build/roots/install.log 2>&1 ||
  skip "no arm64 libraries for $suite: $(tail -n 1 build/roots/install.log)"
rm -rf "$folder/packages"
inside env -C "$PWD/$folder" DEB_HOST_ARCH=arm64 cpack -B packages >build/roots/pack.log 2>&1 || { cat build/roots/pack.log; exit 1; }
rm -r "$folder/packages/_CPack_Packages"
ls -l "$folder/packages"
