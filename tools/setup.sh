#!/bin/sh
# Installs, through apt, what is missing to build moesaic (group "build") and to run every stage of `make test`
# (group "test"). Prints only what it installs; a machine that has everything is left alone.
#   tools/setup.sh [build] [test]        MOESAIC_NO_SETUP=1 skips it
set -eu

build="make g++ cmake ninja-build pkg-config libpcre2-dev libfmt-dev libcli11-dev nlohmann-json3-dev libgtest-dev libboost1.81-dev"
test="git python3 clang clang-format clang-tidy libclang-rt-dev g++-aarch64-linux-gnu qemu-user python3-venv chromium groff mandoc"

[ "${MOESAIC_NO_SETUP:-0}" = 1 ] && exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: no apt on this machine; needed: $build" >&2
  exit 0
fi

installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

missing() {
  for package; do installed "$package" || printf '%s ' "$package"; done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

need_root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null && return
  echo "setup: cannot install $1without root or sudo; as root: apt-get install $1" >&2
  return 1
}

updated=no
update_lists() {
  [ $updated = yes ] && return
  as_root apt-get update -qq || echo "setup: apt-get update failed; going on with the lists that are there" >&2
  updated=yes
}

install() {  # install GROUP PACKAGES...: those that are missing
  group=$1
  shift
  list=$(missing "$@")
  [ -z "$list" ] && return
  need_root "$list" || return 1
  update_lists
  echo "setup: installing for $group: $list"
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $list \
    </dev/null >/dev/null
}

existing() {  # package names differ between releases: keep those that this one knows
  for package; do
    if installed "$package" || apt-cache show "$package" >/dev/null 2>&1; then printf '%s ' "$package"; fi
  done
}

for group in "${@:-build}"; do
  case $group in
    build) install build $build ;;
    test)
      [ -n "$(missing $test)" ] && need_root "$(missing $test)" 2>/dev/null && update_lists
      # A missing tool costs a stage of the tests, which that stage then says; it does not stop the build.
      install test $(existing $test) || echo "setup: some test tools are missing; their stages will be skipped" >&2
      ;;
    *) echo "setup: unknown group '$group' (build or test)" >&2; exit 2 ;;
  esac
done
