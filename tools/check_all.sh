#!/bin/bash
# make test: every stage of the tests, each with its time and its result; what cannot run here is named with the
# reason. Two groups of stages run at once, so that one computes while the other's tests wait or its last file compiles; the
# next group begins where one ends. The stages that were skipped are named before the output of the release build's ctest, whose
# summary closes the whole.
# Logs: build/logs/. MOESAIC_TEST_MINUTES=N: a stage that could only begin later is named as skipped, but for ctest.
#   tools/check_all.sh [STAGE...]     stages: build ctest asan fuzz format tidy aarch64 tsan
set -uo pipefail
cd "$(dirname "$0")/.."

readonly groups=("build ctest" "format tidy" "asan fuzz" "aarch64" "tsan")  # a stage needs those before it in its group
readonly at_once=2
readonly logs=build/logs
readonly skipped=77  # the exit status by which a stage says that it cannot run here
readonly wanted=" ${*:-${groups[*]}} "
mkdir -p $logs
rm -f $logs/failed $logs/skipped

report() { printf '%-8s %-8s %4d s  %s\n' "$1" "$2" "$3" "${4:-}"; }

run_stage() {
  local stage=$1 start=$SECONDS log=$logs/$1.log status
  if [ "$stage" = ctest ] && grep -qx build $logs/failed 2>/dev/null; then return; fi
  if [ "$stage" != ctest ] && ((SECONDS >= 60 * ${MOESAIC_TEST_MINUTES:-1440})); then
    report "$stage" skipped 0 "the machine is slow: $MOESAIC_TEST_MINUTES minutes have passed"
    echo "$stage (late)" >>$logs/skipped
    return
  fi
  tools/check_"$stage".sh </dev/null >"$log" 2>&1
  status=$?
  if [ $status = 0 ]; then
    report "$stage" ok $((SECONDS - start)) "$(tail -n 1 "$log")"
  elif [ $status = $skipped ]; then
    report "$stage" skipped $((SECONDS - start)) "$(tail -n 1 "$log")"
    echo "$stage" >>$logs/skipped
  else
    echo "$stage" >>$logs/failed
    report "$stage" FAILED $((SECONDS - start)) "see $log"
    [ "$stage" = ctest ] || tail -n 60 "$log"
  fi
}

for stage in $wanted; do
  [[ " ${groups[*]} " == *" $stage "* ]] || { echo "no stage '$stage': ${groups[*]}" >&2; exit 2; }
done
rm -f $logs/ctest.log
# Two groups configure with it.
if [[ $wanted == *" build "* || $wanted == *" tidy "* ]]; then tools/setup_python.sh || true; fi
trap 'trap - INT TERM; kill 0' INT TERM  # groups in the background do not hear of Ctrl-C
for group in "${groups[@]}"; do
  if (($(jobs -rp | wc -l) == at_once)); then wait -n; fi
  for stage in $group; do
    if [[ $wanted == *" $stage "* ]]; then run_stage "$stage"; fi
  done &
done
wait
echo "all stages: $SECONDS s"
if [ -s $logs/skipped ]; then echo "skipped stages: $(paste -sd , $logs/skipped | sed 's/,/, /g')"; fi
cat $logs/ctest.log 2>/dev/null
if [ -s $logs/failed ]; then
  echo "failed stages: $(paste -sd ' ' $logs/failed)"
  exit 1
fi
