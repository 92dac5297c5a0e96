#!/bin/bash
# The release build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
tools/setup_python.sh || true  # without it the Python package is not built, which CMake then says
build release
echo "build/release"
