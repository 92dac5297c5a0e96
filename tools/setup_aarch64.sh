#!/bin/sh
# Makes build/sysroot-aarch64: the arm64 packages that the cross build links, unpacked beside the build. apt runs with
# its own state folder and architecture, so it needs no root and the machine's package lists stay as they are.
# Exit status 77: not to be had here (a line says why).
set -eu
cd "$(dirname "$0")/.."
root=${MOESAIC_AARCH64_SYSROOT:-$PWD/build/sysroot-aarch64}
packages="libfmt-dev libpcre2-dev libcurl4-openssl-dev libedit-dev libedit2 libbsd0 libmd0 libtinfo6 libgtest-dev nlohmann-json3-dev libcli11-dev"
complete=$root/.complete-$(echo "$packages" | cksum | cut -d ' ' -f 1)  # written once these packages are there

[ -e "$complete" ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "no apt on this machine, and no arm64 libraries under $root"
  exit 77
fi

apt=$root/apt
rm -rf "$root"
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
: >"$apt/status"
cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
CONF

# Debian's mirrors carry every architecture; Ubuntu's arm64 packages live on a host of their own.
. /etc/os-release
if [ "${ID:-}" = ubuntu ]; then
  for suite in "$VERSION_CODENAME" "$VERSION_CODENAME-updates"; do
    echo "deb http://ports.ubuntu.com/ubuntu-ports $suite main universe"
  done >"$apt/sources.list"
  printf 'Dir::Etc::sourcelist "%s";\nDir::Etc::sourceparts "-";\n' "$apt/sources.list" >>"$apt/apt.conf"
fi

export APT_CONFIG="$apt/apt.conf"
fetch() {
  apt-get update -qq || return
  # The run-time libraries are named by version (libfmt9, libpcre2-8-0): read their names from the -dev packages.
  boost=libboost1.81-dev  # Debian 12 has it beside its default, the older 1.74
  apt-cache show $boost 2>/dev/null | grep -q . || boost=$(apt-cache depends libboost-dev | sed -n 's/^ *Depends: \(libboost1[^ ]*-dev\)$/\1/p')
  libraries=$(apt-cache depends libfmt-dev libpcre2-dev | sed -n 's/^ *Depends: \(lib\(fmt\|pcre2\)[^ ]*\)$/\1/p')
  # shellcheck disable=SC2086
  (cd "$apt/debs" && apt-get download -qq $packages $boost $libraries)
}
if ! fetch >"$apt/log" 2>&1; then
  echo "apt cannot fetch the arm64 packages: $(tail -n 1 "$apt/log")"
  exit 77
fi
for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
# On a whole Debian /lib is /usr/lib.
if [ -d "$root/lib" ]; then cp -a "$root/lib/." "$root/usr/lib/" && rm -r "$root/lib"; fi
touch "$complete"
