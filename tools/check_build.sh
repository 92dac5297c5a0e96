#!/bin/bash
# The release build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
build release
echo "build/release"
