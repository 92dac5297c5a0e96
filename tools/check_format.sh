#!/bin/bash
# Every C++ file is as clang-format writes it (make format mends it), and comments name what exists.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang-format git python3
python3 tools/check_comments.py
sources | xargs clang-format --dry-run --Werror
echo "$(sources | wc -l) files"
