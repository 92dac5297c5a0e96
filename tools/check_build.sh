#!/bin/bash
# The release build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
tools/setup_python.sh || true  # without it the Python package is not built, which CMake then says
# On a CI machine with neither a GPU nor cuobjdump nobody looks at machine code: it is compiled, once for SM12x.
one=OFF
if [ -n "${CI:-}" ] && ! command -v nvidia-smi cuobjdump >/dev/null && [ ! -x /usr/local/cuda/bin/cuobjdump ]; then one=ON; fi
cmake --preset release -DMOESAIC_ONE_SM12X=$one
build release
echo "build/release"
