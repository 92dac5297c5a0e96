#!/bin/bash
# check_tiles.sh OWN LEAN [MODEL]: the tiles of kernels/sm120 compiled at run time, under a whole model on the device at hand. OWN is a
# program with machine code of the tiles for it, LEAN one without (docs/design/sm120.md says how it is built). LEAN must give OWN's
# bits: with an empty cache, a full one, a damaged one, none that can be written, two processes that fill one; and end in one
# line where there is neither NVRTC. Prints what each took.
set -u
own=$1 lean=$2 model=${3:-tiny}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tokens=$(seq -s, 100 399)
failed=0
fail() { echo "FAIL $*" && failed=1; }

# ask PROGRAM CACHE NAME: logits of every position in one prefill, and a greedy answer: tiles for many tokens and for few.
ask() {
  local options=(-m "$model" --device cuda --moe-path w4a8 --dense mxfp8 --log debug) start=$EPOCHREALTIME
  XDG_CACHE_HOME=$2 "$1" logits "${options[@]}" --tokens "$tokens" --all >"$work/$3.logits" 2>"$work/$3.log" || return
  local end=$EPOCHREALTIME
  XDG_CACHE_HOME=$2 "$1" run "${options[@]}" -p "What is 47 x 36?" -n 200 --temp 0 >"$work/$3.text" 2>>"$work/$3.log" || return
  awk -v name="$3" -v a="$start" -v b="$end" '/: compiled for sm_/ { c++ } /: found on disk for sm_/ { f++ }
    END { printf "%-22s %6.2f s, %d tiles compiled, %d found on disk\n", name, b - a, c, f }' "$work/$3.log"
}
# same NAME COMPILED FOUND: OWN's bits, and so many tiles of each kind.
same() {
  cmp -s "$work/own.logits" "$work/$1.logits" || fail "$1: other logits"
  cmp -s "$work/own.text" "$work/$1.text" || fail "$1: other text"
  [ "$(grep -c ': compiled for sm_' "$work/$1.log")" = "$2" ] || fail "$1: not $2 compiled"
  [ "$(grep -c ': found on disk for sm_' "$work/$1.log")" = "$3" ] || fail "$1: not $3 found on disk"
}

ask "$own" "$work/cache" own || { cat "$work/own.log"; exit 1; }
[ -s "$work/own.logits" ] || fail "own: no logits"
grep -qE ': (compiled|found on disk) for sm_' "$work/own.log" && fail "own: tiles were compiled; it has no machine code for this device"
ask "$lean" "$work/cache" cold || { cat "$work/cold.log"; exit 1; }
kernels=$(grep -c ': compiled for sm_' "$work/cold.log")
[ "$kernels" -gt 0 ] || fail "cold: nothing compiled; it has machine code for this device"
same cold "$kernels" "$kernels" # found by `run`
ask "$lean" "$work/cache" warm && same warm 0 $((2 * kernels))

files=("$work"/cache/moesaic/kernels/*)
echo x >>"${files[0]}"
truncate -s 100 "${files[1]}"
dd if=/dev/zero of="${files[2]}" bs=1 seek=2000 count=64 conv=notrunc status=none
ask "$lean" "$work/cache" damaged && same damaged 3 $((2 * kernels - 3))
ask "$lean" /proc/none unwritable && same unwritable $((2 * kernels)) 0
ask "$lean" "$work/two" first >"$work/first.time" & ask "$lean" "$work/two" second; wait
cat "$work/first.time"
for name in first second; do
  cmp -s "$work/own.logits" "$work/$name.logits" || fail "$name of two: other logits"
done

# Hides the library from one process by an empty file in its place.
library=$(readlink -f "${NVRTC:-/usr/local/cuda/lib64/libnvrtc.so}")
# shellcheck disable=SC2016 # $0 and $@ are the inner shell's
hidden() { unshare -rm sh -c 'mount --bind /dev/null "$0" && exec "$@"' "$library" "$@"; }
if hidden true 2>/dev/null; then
  hidden "$lean" logits -m "$model" --device cuda --moe-path w4a8 --tokens 1 >"$work/hidden.out" 2>&1 && fail "no NVRTC: it ran"
  cat "$work/hidden.out"
  [ "$(grep -c '' "$work/hidden.out") $(grep -c 'no NVRTC' "$work/hidden.out")" = "1 1" ] || fail "no NVRTC: not one line that says so"
else
  echo "no NVRTC: not tried, mounting is not allowed here"
fi
[ $failed = 0 ] && echo "all the same"
exit $failed
