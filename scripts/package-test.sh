#!/usr/bin/env bash
# Tests the Debian package in a booted Debian: install, daily run by systemd, upgrade, removal, purge.
# Needs root, mmdebstrap, systemd-nspawn and lintian, and installs those that are missing. Takes about five minutes.
# usage: scripts/package-test.sh [--binary FILE] [--base TAR]
# Without --binary, the program is built for release. With --base, a tree of mmdebstrap is used again or kept.
set -euo pipefail
cd "$(dirname "$0")/.."
binary="" base=""
while [ $# -gt 0 ]; do
  case $1 in
    --binary) binary=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    *) echo "package-test: unknown option $1" >&2; exit 2 ;;
  esac
done
[ "$(id -u)" -eq 0 ] || { echo "package-test: run this as root: it boots a container" >&2; exit 1; }
declare -A package_of=([mmdebstrap]=mmdebstrap [systemd-nspawn]=systemd-container [lintian]=lintian [systemd-analyze]=systemd)
missing=()
for command in "${!package_of[@]}"; do
  command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
step() { printf '\n== %s\n' "$*"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step "the package, and one of a higher version"
if [ -z "$binary" ]; then
  cargo build --release --locked -p silt
  binary=${CARGO_TARGET_DIR:-target}/release/silt
fi
first=$(scripts/package.sh --binary "$binary" "$work/first")
second=$(scripts/package.sh --binary "$binary" --version "$(dpkg-deb -f "$first" Version)+next" "$work/second")
lintian --allow-root --fail-on error,warning "$first"

step "a Debian with systemd"
if [ -z "$base" ] || [ ! -s "$base" ]; then
  mmdebstrap --quiet --variant=minbase --include=systemd-sysv,mount bookworm "$work/base.tar"
  [ -z "$base" ] || cp "$work/base.tar" "$base"
fi
tree=$work/tree
mkdir "$tree"
tar -C "$tree" -xf "${base:-$work/base.tar}"
cp "$first" "$tree/root/first.deb"
cp "$second" "$tree/root/second.deb"
cp scripts/package-test-inside.sh "$tree/root/test.sh"
cat >"$tree/etc/systemd/system/package-test.service" <<'UNIT'
[Unit]
Description=Test of the package
After=multi-user.target
SuccessAction=poweroff
FailureAction=poweroff
[Service]
Type=oneshot
WorkingDirectory=/root
ExecStart=/bin/bash /root/test.sh
StandardOutput=file:/root/log
StandardError=inherit
TimeoutStartSec=5min
UNIT
mkdir -p "$tree/etc/systemd/system/default.target.wants"
ln -s ../package-test.service "$tree/etc/systemd/system/default.target.wants/"

step "the test in it, booted"
# A block device for it, from outside: a container makes none.
truncate -s 16M "$work/disk.raw"
dd if=/dev/urandom of="$work/disk.raw" bs=1M seek=3 count=4 conv=notrunc status=none
loop=$(losetup --find --show "$work/disk.raw")
trap 'losetup -d "$loop"; rm -rf "$work"' EXIT
timeout 600 systemd-nspawn --quiet --boot --register=no --keep-unit --private-network --directory="$tree" \
  --bind="$loop:/dev/test-disk" --console=pipe >"$work/console" 2>&1 </dev/null || true
if ! grep -qx PASSED "$tree/root/log" 2>/dev/null; then
  tail -n 40 "$work/console" >&2
  cat "$tree/root/log" >&2 || true
  echo "package-test: failed" >&2
  exit 1
fi
cat "$tree/root/log"
