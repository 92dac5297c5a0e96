#!/bin/bash
# Every C++ file is as clang-format writes it (make format mends it).
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang-format git
sources | xargs clang-format --dry-run --Werror
echo "$(sources | wc -l) files"
