#!/usr/bin/env bash
# Builds silt, makes two disks with a day of change, backs them up twice, loses a disk, restores it, and shows what was saved.
# usage: scripts/demo.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh demo
cargo build --release --locked -p silt
silt=$PWD/target/release/silt
work=$PWD/.demo
rm -rf "$work/repository"; mkdir -p "$work"
[ -f "$work/db.day1.raw" ] || scripts/demo-disks.sh "$work"
export SILT_REPOSITORY=$work/repository SILT_PASSWORD=demo

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
run() { say "silt $*"; "$silt" "$@"; }

run init
for day in 0 1; do
  for vm in web db; do run backup "$vm" "disk=$work/$vm.day$day.raw"; done
done
run snapshots
run show web@latest

say "the disk web.day1.raw is lost"
cp --sparse=always "$work/web.day1.raw" "$work/kept-for-comparison.raw"
rm -f "$work/web.day1.raw"
run restore web@latest "$work/web.day1.raw"
cmp "$work/web.day1.raw" "$work/kept-for-comparison.raw"
echo "The restored disk is bit-identical to the lost one."
rm -f "$work/kept-for-comparison.raw"
run check --read-data

say "what was saved"
"$silt" stats
"$silt" stats --json | jq -r 'select(.message_type == "summary") | [.logical_bytes, .data_bytes, .levels.new,
  .container_bytes + .metadata_bytes] | map(. / 1048576 | floor) |
  "\n  disks \(.[0]) MiB -> not zeros \(.[1]) MiB -> unique \(.[2]) MiB -> stored \(.[3]) MiB"'
