#!/bin/sh
# make demo: a short conversation with the bundled model. While models/tiny is not there: the operators checked against
# the reference and a short benchmark on random weights of gpt-oss-20b's shapes.
set -eu
cd "$(dirname "$0")/.."
moesaic=${1:-build/release/apps/moesaic}

if [ -f models/tiny/config.json ]; then
  for prompt in "Hello! Who are you?" "What is 17 + 25?" "Sort these numbers: 42, 7, 19."; do
    printf '\n> %s\n' "$prompt"
    "$moesaic" run -m tiny -p "$prompt" -n 256 </dev/null
  done
  exit
fi

echo "models/tiny is not there yet, so there is no model to talk to. Instead:"
echo
echo "1. Every operator of this machine's backend against the reference (moesaic verify --quick)"
"$moesaic" verify --quick
echo
echo "2. Speed with random weights of gpt-oss-20b's shapes, 2 of its 24 layers (moesaic bench)"
"$moesaic" bench -m dummy:gpt-oss-20b,layers=2 -p 128 -n 16 -r 3
