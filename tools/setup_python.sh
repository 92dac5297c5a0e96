#!/bin/sh
# Makes build/venv-python: a virtual environment with what building and testing the Python package needs. nanobind is all
# that the build takes from it. Exit status 77: not to be had here (a line says why).
set -eu
cd "$(dirname "$0")/.."
venv=build/venv-python
packages="nanobind==3.1.0 pytest==9.2.0 numpy pyzmq msgpack"

[ "$(cat $venv/complete 2>/dev/null)" = "$packages" ] && exit 0
rm -rf $venv
mkdir -p build
# shellcheck disable=SC2086
if ! { python3 -m venv $venv && $venv/bin/python -m pip install -q --disable-pip-version-check $packages; } >build/venv-python.log 2>&1; then
  echo "no Python environment to build the package in: $(tail -n 1 build/venv-python.log)"
  rm -rf $venv
  exit 77
fi
echo "$packages" >$venv/complete
