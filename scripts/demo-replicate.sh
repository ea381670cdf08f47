#!/usr/bin/env bash
# Sends a day's change of a disk over a link of 2 Mb/s, restores it at the other site, and compares the bytes that
# a full copy, rsync and silt send, with deltas and without. Then stores similar chunks as deltas at the other site.
# usage: scripts/demo-replicate.sh [--silt FILE] [--rate RATE]     as root: two network namespaces; else a pipe
set -euo pipefail
cd "$(dirname "$0")/.."
rate=2mbit silt=
while [ $# -gt 0 ]; do
  case $1 in
    --silt) silt=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    *) sed -n '2,4p' "$0"; exit 2 ;;
  esac
done
scripts/setup.sh demo-replicate
if [ -z "$silt" ]; then
  cargo build --release --locked -p silt
  silt=$PWD/target/release/silt
fi
work=$PWD/.demo
mkdir -p "$work"
[ -f "$work/db.day1.raw" ] || scripts/demo-disks.sh "$work"
rm -rf "$work/here" "$work/there" "$work/plain" "$work/copied.raw"
export SILT_REPOSITORY=$work/here SILT_PASSWORD=demo SILT_TO_PASSWORD=elsewhere
PATH=$PATH:/sbin:/usr/sbin

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
run() { say "silt $*"; "$silt" "$@"; }
there() { SILT_REPOSITORY=$work/there SILT_PASSWORD=elsewhere "$@"; }

run init
run backup web "disk=$work/web.day0.raw"
say "the first copy travels on a disk"
run replicate --to "$work/there" --init
"$silt" --quiet replicate --to "$work/plain" --init
run backup web "disk=$work/web.day1.raw"

here=silt-here-$$ other=silt-there-$$
pids=()
cleanup() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  ip netns del "$here" 2>/dev/null || true
  ip netns del "$other" 2>/dev/null || true
  rm -f "$work/copied.raw"
}
trap cleanup EXIT

full=$(($(stat -c '%b * %B' "$work/web.day1.raw")))
rsync_bytes=-
if [ "$(id -u)" -eq 0 ] && ip netns add "$here" 2>/dev/null; then
  ip netns add "$other"
  ip link add silt0 netns "$here" type veth peer name silt1 netns "$other"
  for side in "$here 0 10.231.0.1" "$other 1 10.231.0.2"; do
    read -r space number address <<<"$side"
    ip -n "$space" link set lo up
    ip -n "$space" address add "$address/24" dev "silt$number"
    ip -n "$space" link set "silt$number" up
    tc -n "$space" qdisc add dev "silt$number" root tbf rate "$rate" burst 16k latency 200ms
  done
  counted() { ip netns exec "$here" cat /sys/class/net/silt0/statistics/{tx,rx}_bytes | paste -sd+ | bc; }
  there ip netns exec "$other" "$silt" serve replica --listen 10.231.0.2:7420 &
  pids+=($!)
  sleep 1
  say "silt replicate --to tcp://10.231.0.2:7420     (a link of $rate each way)"
  before=$(counted) began=$(date +%s)
  ip netns exec "$here" "$silt" replicate --to tcp://10.231.0.2:7420
  silt_bytes=$(($(counted) - before)) silt_seconds=$(($(date +%s) - began))
  say "rsync --inplace --no-whole-file -z, of the raw image"
  cp --sparse=always "$work/web.day0.raw" "$work/copied.raw"
  printf 'use chroot = no\n[disk]\npath = %s\nread only = no\nuid = root\n' "$work" >"$work/rsyncd.conf"
  ip netns exec "$other" rsync --daemon --no-detach --config "$work/rsyncd.conf" --port 7421 &
  pids+=($!)
  sleep 1
  before=$(counted) began=$(date +%s)
  ip netns exec "$here" rsync --inplace --no-whole-file -z "$work/web.day1.raw" \
    rsync://10.231.0.2:7421/disk/copied.raw
  rsync_bytes=$(($(counted) - before)) rsync_seconds=$(($(date +%s) - began))
  cmp "$work/web.day1.raw" "$work/copied.raw"
else
  echo "Without root there is no link to count on: a pipe takes its place."
  began=$(date +%s)
  to="exec:SILT_PASSWORD=elsewhere '$silt' serve replica -r '$work/there'"
  say "silt replicate --to \"$to\""
  silt_bytes=$("$silt" replicate --to "$to" --json | jq 'select(.message_type == "replication") | .sent_bytes + .received_bytes')
  silt_seconds=$(($(date +%s) - began)) rsync_seconds=-
fi

say "the same without deltas, through a pipe to a second replica"
to="exec:SILT_PASSWORD=elsewhere '$silt' serve replica -r '$work/plain'"
plain_bytes=$("$silt" replicate --delta off --to "$to" --json |
  jq 'select(.message_type == "replication") | .sent_bytes + .received_bytes')

say "silt optimize, at the other site"
stored() { du --bytes --summarize "$work/there" | cut -f1; }
before=$(stored) began=$(date +%s)
there "$silt" optimize
# What was rewritten goes after a reclaim.
there "$silt" --quiet reclaim
after=$(stored) optimize_seconds=$(($(date +%s) - began))
say "the disk is restored at the other site, and compared"
there "$silt" restore web@latest "$work/copied.raw" --force
cmp "$work/web.day1.raw" "$work/copied.raw"
echo "It is bit-identical."
mib() { [ "$1" = - ] && echo - || awk "BEGIN { printf \"%.1f\", $1 / 1048576 }"; }
printf '\n%-34s%12s%10s\n' "sent for a day's change of web" "MiB" "seconds"
printf '%-34s%12s%10s\n' "full copy, without holes" "$(mib "$full")" "" \
  "rsync --inplace -z" "$(mib "$rsync_bytes")" "$rsync_seconds" \
  "silt replicate --delta off" "$(mib "$plain_bytes")" "" \
  "silt replicate" "$(mib "$silt_bytes")" "$silt_seconds"
printf '\n%-34s%12s%10s\n' "stored at the other site" "MiB" "seconds"
printf '%-34s%12s%10s\n' "two days, as received" "$(mib "$before")" "" \
  "after silt optimize" "$(mib "$after")" "$optimize_seconds"
