#!/usr/bin/env bash
# Experts in host memory beside one GPU: tests, answers, then speed with prompts that bring experts to the GPU and with
# prompts that the CPU computes. Some six minutes.
#
#   tools/benchmarks/host_experts.sh PROGRAM [TEST]     PROGRAM: moesaic, TEST: cuda_host_experts_test
set -uo pipefail
readonly program=$1 test=${2:-}
readonly model=dummy:gpt-oss-20b,dense=bf16
failed=0

title() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }
run() {
  timeout "$1" "${@:2}" && return 0
  echo "FAILED ($?): ${*:2}"
  failed=1  # not seen where this is part of a pipeline
  return 1
}

title "machine"
nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
lscpu | grep -E 'Model name|^CPU\(s\)|Thread|NUMA node\(s\)'

if [ -n "$test" ]; then
  title "tests"
  run 120 "$test"
fi

if command -v compute-sanitizer > /dev/null; then
  title "memcheck: prompts on the GPU, answers by the CPU"
  run 60 compute-sanitizer --tool memcheck --error-exitcode 9 "$program" run -m tiny --device cuda --experts host,stream:9 \
    --raw --temp 0 -n 8 -p "Once upon a time there was a little girl who had a red ball." | tail -5 || failed=1
fi

# The tolerance is that of 8-bit activations (docs/design/numerics.md).
title "a whole model against the reference"
for experts in host,stream:never host,stream:9; do
  run 40 "$program" verify -m tiny --device cuda --experts $experts --tokens 64 | tail -2 || failed=1
done

title "placement"
run 60 "$program" plan -m $model --device cuda --gpu-memory 8 --tokens 1 | grep -E 'host memory|projection|GB/s|experts' || failed=1

title "speed"
for experts in auto auto,stream:never; do
  run 60 "$program" bench -m $model --device cuda --gpu-memory 8 --experts $experts -p 512,2048 -n 64 -b 1 -r 1
done
run 60 "$program" bench -m $model --device cuda --gpu-memory 8 --ubatch 8192 -p 8192 -n 0 -b 1 -r 1
run 60 "$program" bench -m $model --device cuda --gpu-memory 8 -p 0 -n 64 -b 8 -r 1
# Skewed choices, a quarter of the experts with 70% of them: whole layers on the GPU, and the hot experts of all layers.
title "hot experts, skewed routing"
for experts in auto,stream:never auto,stream:never,hot:9 auto,hot:7; do
  run 60 "$program" bench -m $model,zipf=1 --device cuda --gpu-memory 8 --experts $experts -p 0 -n 512 -b 1 -r 2
done
title "all experts on the host"
run 60 "$program" bench -m $model --device cuda --experts host -p 128,512,2048 -n 64 -b 1 -r 1
title "operations of a prompt's step"
run 60 "$program" profile -m $model --device cuda --gpu-memory 8 -b 2048 -n 4 | tail -20 || failed=1
title "done"
exit $failed
