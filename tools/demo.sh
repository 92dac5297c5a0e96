#!/bin/sh
# make demo: a few questions to the bundled model, each with what it thought (dimmed or on standard error) and its speed.
# Greedy and on one thread: the model is so small that more threads mostly wait for each other.
set -eu
cd "$(dirname "$0")/.."
moesaic=${1:-build/release/apps/moesaic}

ask() {
  printf '\n> %s\n' "$1"
  prompt=$1
  shift
  "$moesaic" run -m tiny -p "$prompt" -n 512 -t 1 --temp 0 --show-reasoning "$@" </dev/null
}

ask "Hello! Who are you?"
ask "What is 47 x 36?"
ask "Sort these numbers: 42, 7, 19, 88, 3."
ask "How many r's are in strawberry?" --reasoning high
ask "Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age, city." --reasoning low
ask "Tell me a story about an owl and a lantern."
