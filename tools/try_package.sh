#!/bin/bash
# Tries a package as somebody would who has nothing yet: a clean root of a distribution (debootstrap) gets the package, an
# ordinary user in it asks the bundled model, the package goes again, and whatever it leaves behind is listed.
#   tools/try_package.sh SUITE FILE.deb|FILE.tar.gz|FILE.whl [ARCHITECTURE]
# SUITE is Debian's or Ubuntu's name (bookworm, noble). Another ARCHITECTURE (arm64) needs qemu-user-static's binfmt entry.
# Needs root; exit status 77: what it needs is not to be had here.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh && . tools/clean_root.sh
suite=$1 package=$(realpath "$2") architecture=${3:-$(dpkg --print-architecture)}
root=$PWD/build/roots/try-$$

need setpriv

as_user() { inside setpriv --reuid=12345 --regid=12345 --clear-groups env HOME=/home/someone "$@"; }

# Everything but what package managers keep of their own work.
files() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/apt \
    -o -path ./var/lib/dpkg -o -path ./var/lib/systemd -o -path ./etc/ld.so.cache \) -prune -o -print | sort)
}

install_package() {
  case $package in
    *.deb) inside apt-get install -y -qq "/tmp/${package##*/}" ;;
    *.tar.gz) inside tar -xzf "/tmp/${package##*/}" -C /opt ;;
    *.whl) as_user sh -c "python3 -m venv /home/someone/venv && /home/someone/venv/bin/pip install -q --no-index /tmp/${package##*/}" ;;
  esac
}
remove_package() {
  case $package in
    *.deb) inside sh -c 'apt-get purge -y -qq moesaic && apt-get autoremove --purge -y -qq' ;;
    *.tar.gz) inside sh -c 'rm -r /opt/moesaic-*' ;;
    *.whl) as_user sh -c '/home/someone/venv/bin/pip uninstall -q -y moesaic && find /home/someone/venv | grep moesaic; rm -r /home/someone/venv' ;;
  esac
}
program() {
  case $package in
    *.deb) echo moesaic ;;
    *.tar.gz) (cd "$root" && set -- opt/moesaic-*/bin/moesaic && echo "/$1") ;;
    *.whl) echo /home/someone/venv/bin/moesaic ;;
  esac
}

clean_root
mkdir -p "$root/home/someone" && chown 12345:12345 "$root/home/someone"
cp "$package" "$root/tmp/" && chmod 644 "$root/tmp/${package##*/}"
# Certificates come with nearly every system, and stay when a package that recommends them goes.
inside apt-get install -y -qq ca-certificates >build/roots/update.log 2>&1 || skip "the mirror of $suite does not answer: $(tail -n 1 build/roots/update.log)"
if [ "${package##*.}" = whl ]; then inside apt-get install -y -qq python3-venv >/dev/null 2>&1; fi
files >"$root/tmp/before"

start=$(date +%s.%N)
install_package >build/roots/install.log 2>&1 || { cat build/roots/install.log; exit 1; }
installed=$(date +%s.%N)
moesaic=$(program)
as_user "$moesaic" --version
as_user "$moesaic" run -m tiny -p "What is 17 + 25?" --temp 0 | tee "$root/tmp/answer"
grep -q "17 + 25 = 42" "$root/tmp/answer"
answered=$(date +%s.%N)
remove_package >build/roots/remove.log 2>&1 || { cat build/roots/remove.log; exit 1; }
files >"$root/tmp/after"
if ! diff "$root/tmp/before" "$root/tmp/after" >build/roots/left; then
  head -n 20 build/roots/left
  echo "what is left behind: build/roots/left"
  exit 1
fi
awk -v start="$start" -v installed="$installed" -v answered="$answered" -v name="${package##*/} on $suite ($architecture)" \
  'BEGIN { printf "%s: installed in %.1f s, answered after %.1f s, nothing left behind\n", name, installed - start, answered - start }'
