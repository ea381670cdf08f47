#!/usr/bin/env bash
# Backs up every day of a fleet of raw disks, as raw and as qcow2, restores each to raw, qcow2 and a loop device, and compares.
# FLEET holds NAME.dayN.raw; needs root for the loop device, qemu-img, and free space of about three disks.
# usage: scripts/verify-fleet.sh FLEET "NAME ..." DAYS [SCRATCH]
set -euo pipefail
fleet=$1 names=$2 days=$3 scratch=${4:-$(mktemp -d)}
silt=${SILT:-$(dirname "$0")/../target/release/silt}
mkdir -p "$scratch"
export SILT_REPOSITORY=$scratch/repository SILT_PASSWORD=verify
rm -rf "$SILT_REPOSITORY"
"$silt" init --kdf-memory 8 --kdf-passes 1 >/dev/null
declare -A id
snapshot() { "$silt" backup "$@" --json | jq -r 'select(.message_type == "summary").id'; }
for ((day = 0; day < days; day++)); do
  for name in $names; do
    raw=$fleet/$name.day$day.raw
    id[$name.raw.$day]=$(snapshot "$name-raw" "disk=$raw")
    qemu-img convert -O qcow2 "$raw" "$scratch/source.qcow2"
    id[$name.qcow2.$day]=$(snapshot "$name-qcow2" "disk=$scratch/source.qcow2")
    rm -f "$scratch/source.qcow2"
  done
done
count=0
truncate -s "$(stat -c %s "$fleet/${names%% *}.day0.raw")" "$scratch/device.raw"
device=$(losetup --find --show "$scratch/device.raw")
trap 'losetup -d "$device"; rm -rf "$SILT_REPOSITORY" "$scratch"/{device.raw,out.raw,out.qcow2}' EXIT
for key in "${!id[@]}"; do
  IFS=. read -r name _ day <<<"$key"
  raw=$fleet/$name.day$day.raw
  "$silt" restore -q "${id[$key]}" "$scratch/out.raw" --force >/dev/null
  cmp "$raw" "$scratch/out.raw"
  "$silt" restore -q "${id[$key]}" "$scratch/out.qcow2" --format qcow2 --force >/dev/null
  qemu-img check -q "$scratch/out.qcow2"
  qemu-img compare -q -f raw -F qcow2 "$raw" "$scratch/out.qcow2"
  "$silt" restore -q "${id[$key]}" "$device" --force >/dev/null
  cmp "$raw" "$device"
  count=$((count + 3))
  echo "$key: raw, qcow2 and $device are identical to $raw"
done
"$silt" check --read-data
"$silt" stats
echo "$count restores, all identical."
