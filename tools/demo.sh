#!/bin/sh
# make demo: installs what is missing, builds the program for this machine alone (-DMOESAIC_THIS_MACHINE=ON), and asks the
# bundled model a few questions. It says what it does and how long that takes.
#   tools/demo.sh [PROGRAM]        with a program that exists: only the questions
set -eu
cd "$(dirname "$0")/.."
begin=$(date +%s)
moesaic=${1:-build/release/apps/moesaic}
cores=$(nproc 2>/dev/null || echo 2)

took() { printf 'demo: that took %d min %d s\n' $((($(date +%s) - $1) / 60)) $((($(date +%s) - $1) % 60)); }

# about SECONDS: of one core, shared by those of this machine.
about() { echo "about $((($1 / cores + 59) / 60)) min on $cores cores"; }

for_this_machine() {
  sed -n 's/^-- This machine/demo: this machine/p; /^CMake Warning/,/^\(Call.*\)*$/s/^  */demo: /p' build/configure.log
  seconds=210
  grep -q '^-- This machine.*CUDA' build/configure.log && seconds=900
  echo "demo: from nothing the build takes $(about $seconds)"
}

build() {
  echo "demo: packages that the build needs; those that are missing come by apt or dnf"
  tools/setup.sh build
  mkdir -p build
  cmake --preset release -DMOESAIC_THIS_MACHINE=ON >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
  for_this_machine
  start=$(date +%s)
  cmake --build build/release --target moesaic
  took "$start"
}

# Greedy and on one thread: the model is so small that more threads mostly wait for each other.
ask() {
  printf '\n> %s\n' "$1"
  prompt=$1
  shift
  "$moesaic" run -m tiny -p "$prompt" -n 512 -t 1 --temp 0 --show-reasoning -v "$@" </dev/null
}

[ $# -gt 0 ] || build
echo "demo: six questions to the bundled model, each with what it thought and its speed"
ask "Hello! Who are you?"
ask "What is 47 x 36?"
ask "Sort these numbers: 42, 7, 19, 88, 3."
ask "How many r's are in strawberry?" --reasoning high
ask "Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age, city." --reasoning low
ask "Tell me a story about an owl and a lantern."
printf '\n'
took "$begin"
echo "demo: next: $moesaic run -m tiny      a conversation; /help lists its commands"
echo "demo:       make install              the whole program, for all devices and optimised throughout, into /usr/local"
echo "demo:       $moesaic pull openai/gpt-oss-20b      a real model"
