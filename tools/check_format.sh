#!/bin/bash
# Every C++ file is as clang-format writes it (make format mends it), comments name what exists, no files import each other, and operands of
# co_await have no temporaries that GCC 12 destroys twice.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang-format git python3
python3 tools/check_comments.py
python3 tools/check_imports.py
python3 tools/check_coroutines.py
sources | xargs clang-format --dry-run --Werror
echo "$(sources | wc -l) files"
