#!/usr/bin/env bash
# Experts in host memory beside one GPU: answers with and without, then speed. Some six minutes.
#
#   tools/benchmarks/host_experts.sh PROGRAM [TEST]     PROGRAM: moesaic, TEST: cuda_host_experts_test
set -uo pipefail
readonly program=$1 test=${2:-}
readonly model=dummy:gpt-oss-20b,dense=bf16
failed=0

title() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

title "machine"
nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
lscpu | grep -E 'Model name|^CPU\(s\)'

if [ -n "$test" ]; then
  title "answers of tiny: prompts, batches, again"
  timeout 100 "$test" || failed=1
fi

title "answers of tiny: one by one"
for prompt in "Once upon a time" "The capital of France is" "1 2 3 4 5 6" "def main():" "Write a poem about rain."; do
  want=$("$program" run -m tiny --device cuda --raw --temp 0 -n 40 -p "$prompt" 2>/dev/null)
  for experts in host:1 host; do
    got=$("$program" run -m tiny --device cuda --experts $experts --raw --temp 0 -n 40 -p "$prompt" 2>/dev/null)
    if [ "$got" = "$want" ]; then echo "same: $experts, $prompt"; else echo "DIFFERENT: $experts, $prompt"; failed=1; fi
  done
done

title "operations"
timeout 100 "$program" verify --quick --device cuda | tail -3 || failed=1
# The limit that it names is for 16-bit activations; the CPU's 8-bit ones may have ten times that (src/model/verify.cpp).
timeout 60 "$program" verify -m tiny --device cuda --experts host --tokens 64 | tail -4

title "placement"
timeout 60 "$program" plan -m $model --device cuda --gpu-memory 8 --tokens 1 | grep -E 'host memory|projection|GB/s'

title "speed"
"$program" bench -m $model --device cuda -p 512,2048 -n 128 -b 1 -r 2
for memory in 16 8; do
  timeout 80 "$program" bench -m $model --device cuda --gpu-memory $memory -p 512,2048 -n 128 -b 1 -r 2 || failed=1
  timeout 60 "$program" bench -m $model --device cuda --gpu-memory $memory -p 0 -n 64 -b 8 -r 2 || failed=1
done
title "all experts on the host"
timeout 60 "$program" bench -m $model --device cuda --experts host -p 512 -n 64 -b 1 -r 2 || failed=1
timeout 60 "$program" profile -m $model --device cuda --gpu-memory 8 | tail -20
title "done"
exit $failed
