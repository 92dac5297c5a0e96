#!/bin/sh
# Installs, through apt or dnf, what is missing to build moesaic (group "build"), to run every stage of `make test`
# (group "test") and to make packages (group "package"). Prints only what it installs; a machine that has everything is
# left alone.
#   tools/setup.sh [build] [test] [package]        MOESAIC_NO_SETUP=1 skips it
set -eu

[ "${MOESAIC_NO_SETUP:-0}" = 1 ] && exit 0
if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  manager=apt-get
  build="make g++ cmake ninja-build pkg-config libpcre2-dev libcurl4-openssl-dev libedit-dev libfmt-dev libcli11-dev nlohmann-json3-dev libgtest-dev"
  test="git python3 clang clang-format clang-tidy libclang-rt-dev lld g++-aarch64-linux-gnu qemu-user python3-venv python3-dev chromium groff mandoc tmux binutils libzmq5"
  package="dpkg-dev file"
  # Libraries by which the chat page shows answers. Without them it shows plain text.
  page="libjs-marked node-dompurify node-highlight.js libjs-katex fonts-katex gzip"
else
  manager=dnf
  build="make gcc-c++ cmake ninja-build pkgconf-pkg-config pcre2-devel libcurl-devel libedit-devel fmt-devel cli11-devel json-devel gtest-devel boost-devel"
  test="git python3 python3-devel clang clang-tools-extra compiler-rt lld qemu-user chromium groff mandoc tmux binutils zeromq"
  package=""
  page="gzip"
fi
if ! command -v $manager >/dev/null; then
  echo "setup: neither apt nor dnf on this machine; needed: a C++20 compiler, CMake, Ninja, pkg-config, PCRE2, libcurl (headers), libedit, fmt, CLI11, nlohmann-json, Boost (headers), GoogleTest" >&2
  exit 0
fi

installed() {
  if [ $manager = dnf ]; then
    rpm -q --whatprovides "$1" >/dev/null 2>&1
  else
    dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
  fi
}

known() {
  if [ $manager = dnf ]; then dnf -q info "$1" >/dev/null 2>&1; else apt-cache show "$1" 2>/dev/null | grep -q .; fi
}

missing() {
  for package; do installed "$package" || printf '%s ' "$package"; done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

need_root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null && return
  echo "setup: cannot install $1without root or sudo; as root: $manager install $1" >&2
  return 1
}

updated=no
update_lists() {
  if [ $updated = yes ] || [ $manager = dnf ]; then return; fi
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
  options="--no-install-recommends -qq"
  [ $manager = dnf ] && options="--setopt=install_weak_deps=False -q"
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive $manager install -y $options $list </dev/null >/dev/null
}

existing() {  # package names differ between releases: keep those that this one knows
  for package; do
    if installed "$package" || known "$package"; then printf '%s ' "$package"; fi
  done
}

# Boost's headers have no package name that fits all: Debian 12 has 1.74 as its default and 1.81 beside it. The two
# exclude each other, so one that is there is kept.
add_boost() {
  [ $manager = apt-get ] || return 0
  dpkg-query -W -f='${db:Status-Status}\n' 'libboost1.*-dev' 2>/dev/null | grep -qx installed && return 0
  # Without package lists nothing is known, and the older one would be taken.
  known libboost-dev || { need_root "libboost-dev " && update_lists; } || return 1
  boost=libboost-dev
  known libboost1.81-dev && boost=libboost1.81-dev
  build="$build $boost"
}

for group in "${@:-build}"; do
  case $group in
    build)
      add_boost
      install build $build
      [ -n "$(missing $page)" ] && { known gzip || { need_root "$(missing $page)" && update_lists; }; }
      install build $(existing $page) || echo "setup: some packages of the chat page are missing; it will show plain text" >&2
      ;;
    package) install package $package ;;
    test)
      [ -n "$(missing $test)" ] && need_root "$(missing $test)" 2>/dev/null && update_lists
      # A missing tool costs a stage of the tests, which that stage then says; it does not stop the build.
      install test $(existing $test) || echo "setup: some test tools are missing; their stages will be skipped" >&2
      ;;
    *) echo "setup: unknown group '$group' (build, test or package)" >&2; exit 2 ;;
  esac
done
