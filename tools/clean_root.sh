# Clean roots of a distribution by debootstrap, shared by tools that try and make packages: source it from the repository's root,
# after check_lib.sh. It wants $suite (Debian's or Ubuntu's name: bookworm, noble), $architecture and $root, the folder of the root
# that is used. What is made by debootstrap stays in build/roots.

mirror() {
  case $suite in
    jammy | noble | resolute) [ "$architecture" = amd64 ] && echo http://archive.ubuntu.com/ubuntu || echo http://ports.ubuntu.com/ubuntu-ports ;;
    *) echo http://deb.debian.org/debian ;;
  esac
}

# inside COMMAND...: in the root, with /proc and /dev of its own namespace and no variables of this machine. $shared: a folder
# of this machine that is there, too.
inside() {
  unshare --mount --pid --fork sh -c 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" &&
    { [ -z "$1" ] || { mkdir -p "$0$1" && mount --bind "$1" "$0$1"; }; } && shift && exec chroot "$0" env -i \
    HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' "$root" "${shared:-}" "$@"
}

make_clean_root() {
  local clean=$1 script=/usr/share/debootstrap/scripts/$suite
  [ -e "$clean" ] && return
  mkdir -p build/roots
  rm -rf "$clean.part"
  # Debian's debootstrap may know neither a newer Ubuntu nor its keys: these roots are for trying, nothing of them is published.
  if [ ! -e "$script" ]; then script=/usr/share/debootstrap/scripts/gutsy; fi
  debootstrap --no-check-gpg --variant=minbase --arch="$architecture" --components=main,universe "$suite" "$clean.part" "$(mirror)" "$script" \
    >build/roots/debootstrap.log 2>&1 || skip "no clean root of $suite for $architecture: $(tail -n 1 build/roots/debootstrap.log)"
  mv "$clean.part" "$clean"
}

# Makes $root, which goes when the script ends.
clean_root() {
  [ "$(id -u)" = 0 ] || skip "clean roots need root"
  need debootstrap unshare
  make_clean_root "$PWD/build/roots/$suite-$architecture"
  trap 'rm -rf --one-file-system "$root"' EXIT
  cp -a "$PWD/build/roots/$suite-$architecture" "$root"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # A mirror may be older than its suite's promise.
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99clean-root"
  inside apt-get update -qq >build/roots/update.log 2>&1 || skip "the mirror of $suite does not answer: $(tail -n 1 build/roots/update.log)"
}
