#!/usr/bin/env bash
# Makes a Debian package of the program: FOLDER/silt_VERSION_ARCHITECTURE.deb. Installs debhelper if it is missing.
# usage: scripts/package.sh [--binary FILE] [--version VERSION] [FOLDER]
# Without --binary, the program is built for release. Without FOLDER, the package is put into target/package.
set -euo pipefail
cd "$(dirname "$0")/.."
binary="" version="" folder=target/package
while [ $# -gt 0 ]; do
  case $1 in
    --binary) binary=$2; shift 2 ;;
    --version) version=$2; shift 2 ;;
    -*) echo "package: unknown option $1" >&2; exit 2 ;;
    *) folder=$1; shift ;;
  esac
done
missing=()
command -v dh >/dev/null || missing+=(debhelper)
command -v dpkg-shlibdeps >/dev/null || missing+=(dpkg-dev)
if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ -z "$binary" ]; then
  cargo build --release --locked -p silt
  binary=${CARGO_TARGET_DIR:-target}/release/silt
fi
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/silt
mkdir -p "$tree/completions" "$tree/docs"
cp -r packaging/debian "$tree/debian"
cp packaging/silt.toml README.md "$tree"
cp docs/OPERATIONS.md docs/JSON.md "$tree/docs"
# By another name: debhelper would take it for the changelog of Debian.
cp CHANGELOG.md "$tree/docs/NEWS.md"
cp -r packaging/systemd/examples "$tree/examples"
mkdir "$tree/units"
cp packaging/systemd/silt-*@.* packaging/systemd/silt-agent.service "$tree/units"
cp "$binary" "$tree/silt"
if [ -n "$version" ]; then sed -i "1s/(.*)/($version)/" "$tree/debian/changelog"; fi
day=$(date -u -d "$(dpkg-parsechangelog -l "$tree/debian/changelog" -S Date)" +%F)
"$tree/silt" --quiet manual "$tree/man" --date "$day"
for shell in bash:silt zsh:_silt fish:silt.fish; do
  "$tree/silt" completion "${shell%%:*}" >"$tree/completions/${shell#*:}"
done
( cd "$tree" && dpkg-buildpackage -b -us -uc -ui --no-sign >"$work/log" 2>&1 ) || { cat "$work/log" >&2; exit 1; }
for deb in "$work"/silt_*.deb; do
  cp "$deb" "$folder/"
  echo "$folder/$(basename "$deb")"
done
