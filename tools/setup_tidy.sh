#!/bin/sh
# Makes build/clang-tidy: clang-tidy of a package on PyPI. From version 22 on it leaves out the system's headers, which take an
# older one most of its time. Exit status 77: not to be had (a line says why).
set -eu
cd "$(dirname "$0")/.."
exec tools/get_wheels.sh build/clang-tidy clang-tidy==23.1.4 clang_tidy/data/bin/clang-tidy
