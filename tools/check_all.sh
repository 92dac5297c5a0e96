#!/bin/bash
# make test: every stage of the tests, each with its time and its result; what cannot run here is named with the
# reason. The release build's ctest comes last, so that its summary closes the output. Logs: build/logs/.
#   tools/check_all.sh [STAGE...]     stages: build format asan tsan fuzz aarch64 tidy ctest
set -uo pipefail
cd "$(dirname "$0")/.."

readonly all_stages=(build format asan tsan fuzz aarch64 tidy ctest)
readonly logs=build/logs
readonly skipped=77  # the exit status by which a stage says that it cannot run here
failed=()
mkdir -p $logs

report() { printf '%-8s %-8s %4d s  %s\n' "$1" "$2" "$3" "${4:-}"; }

run_stage() {
  local stage=$1 start=$SECONDS log=$logs/$1.log status
  tools/check_"$stage".sh </dev/null >"$log" 2>&1
  status=$?
  if [ $status = 0 ]; then
    report "$stage" ok $((SECONDS - start)) "$(tail -n 1 "$log")"
  elif [ $status = $skipped ]; then
    report "$stage" skipped $((SECONDS - start)) "$(tail -n 1 "$log")"
  else
    report "$stage" FAILED $((SECONDS - start)) "see $log; its end:"
    tail -n 60 "$log"
    failed+=("$stage")
  fi
}

run_ctest() {
  if [[ " ${failed[*]-} " == *" build "* ]]; then return; fi
  tools/check_ctest.sh </dev/null || failed+=(ctest)
}

for stage in "${@:-${all_stages[@]}}"; do
  if [ "$stage" = ctest ]; then run_ctest; else run_stage "$stage"; fi
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed stages: ${failed[*]}"
  exit 1
fi
