#!/usr/bin/env bash
# Two hosts, as two agents on a bus, back up three disks together into a bucket. One of them is killed in the middle
# of a round and started again. Then the disks are backed up to three storage nodes, each with a process beside it; one
# process is killed, and one node is drained. Every disk is restored and compared.
# usage: scripts/demo-cluster.sh [--silt FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
silt=
while [ $# -gt 0 ]; do
  case $1 in
    --silt) silt=$2; shift 2 ;;
    *) sed -n '2,5p' "$0"; exit 2 ;;
  esac
done
scripts/setup.sh demo-cluster
PATH=$PATH:${GOBIN:-${GOPATH:-$HOME/go}/bin}
if [ -z "$silt" ]; then
  cargo build --release --locked -p silt
  silt=$PWD/target/release/silt
fi
silt=$(realpath "$silt")
work=$PWD/.demo/cluster
rm -rf "$work"
mkdir -p "$work/bucket/silt"
scripts/demo-disks.sh "$work" web db mail
export SILT_PASSWORD=demo

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
note() { printf '\n%s\n' "$*"; }
fail() { echo "demo-cluster: $*" >&2; exit 1; }

declare -A pid_of=()
stop() { # name, signal: with all processes that it started
  local pid=${pid_of[$1]:-}
  [ -n "$pid" ] || return 0
  unset "pid_of[$1]"
  kill "-$2" -- "-$pid" 2>/dev/null || true
  until_true "the end of $1" is_gone "$pid"
}
is_gone() { ! kill -0 -- "-$1" 2>/dev/null; }
start() { # name, command: in a group of processes of its own, with a log
  setsid "${@:2}" >>"$work/$1.log" 2>&1 &
  pid_of[$1]=$!
  disown
}
cleanup() {
  local status=$?
  [ -z "${killer:-}" ] || kill "$killer" 2>/dev/null || true
  for name in host1 host2 n1 n2 n3 nats minio; do stop "$name" TERM; done
  if [ "$status" -ne 0 ]; then
    echo "demo-cluster: failed ($status); the logs are in $work" >&2
    tail -n 5 "$work"/*.log >&2
    return
  fi
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
cd "$work"
until_true() { # what, command
  for _ in $(seq 300); do
    "${@:2}" && return 0
    sleep 0.1
  done
  fail "waited in vain for $1"
}

# One of the people who use the cluster: settings without series of their own.
as() { SILT_CONFIG=$work/$1.toml XDG_STATE_HOME=$work/$1.state SILT_CACHE_DIR=$work/$1.cache "${@:2}"; }
run() { say "silt $*"; as admin "$silt" "$@"; }
seconds() { awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $1 }"; }
mib() { awk "BEGIN { printf \"%.1f\", $1 / 1048576 }"; }
stored() { du -sb "$work/bucket/silt" | cut -f 1; }
snapshots() { as admin "$silt" snapshots "$1" --json | jq -s 'map(select(.series == "'"$1"'")) | length'; }
rows=()
row() { # what, began, stored before, shared chunks
  rows+=("$1" "$(mib "$(($(stored) - $3))")" "${4:--}" "$(seconds "$2")")
}
shared() { sed -n 's/^Part.* \([0-9]*\) shared .*/\1/p' "$work/round"; }
day() { for disk in web db mail; do ln -sf "$disk.day$1.raw" "$work/$disk.raw"; done; }

disk_bytes=$(($(for disk in web db mail; do stat -c '%b * %B +' "$work/$disk.day0.raw"; done) 0))
day 0
note "The bucket is in a MinIO, the bus is a NATS server with JetStream, both on this machine."
read -r minio nats < <(python3 -c 'import socket
sockets = [socket.socket() for _ in range(2)]
for one in sockets: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))')
export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-demo AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:$minio
MINIO_ROOT_USER=demo MINIO_ROOT_PASSWORD=demo-demo MINIO_BROWSER=off \
  start minio minio server --quiet --address "127.0.0.1:$minio" "$work/bucket"
start nats nats-server -js -sd "$work/bus" -a 127.0.0.1 -p "$nats"
listens() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
until_true "MinIO" listens "$minio"
until_true "NATS" listens "$nats"

settings() { # host, settings of its profile, series
  printf '[agent]\nname = "%s"\n\n[agent.bus]\nservers = ["nats://127.0.0.1:%s"]\n\n' "$1" "$nats"
  printf '[profiles.default]\nrepository = "s3://silt/vms"\n%b' "$2"
  for series in "${@:3}"; do
    printf '\n[profiles.default.series.%s]\nvolumes = { disk = "%s.raw" }\n' "$series" "$series"
  done
}
settings host1 '' web db >"$work/host1.toml"
# A slow host, so that a round has a middle in which it can be killed.
settings host2 'limit-read = 12\n' mail >"$work/host2.toml"
settings admin '' | sed '/^name/a ask-nodes = true' >"$work/admin.toml"
say "cat host1.toml"
cat "$work/host1.toml"

run init
agent() { start "$1" env "SILT_CONFIG=$work/$1.toml" "XDG_STATE_HOME=$work/$1.state" \
  "SILT_CACHE_DIR=$work/$1.cache" "$silt" agent run --json; }
both() { [ "$(as admin "$silt" cluster agents --json 2>/dev/null | grep -c '"cluster_agent"')" -eq 2 ]; }
agent host1
agent host2
until_true "the agents" both
run cluster agents

note "A backup of one disk, on command from another host:"
before=$(stored) began=$EPOCHREALTIME
run cluster backup web --follow
row "backup of web" "$began" "$before"

round() { # status that it should have, options: leaves what it printed in $work/round
  local status=0
  run cluster round "${@:2}" 2>&1 | tee "$work/round" || status=$?
  [ "$status" -eq "$1" ] || fail "the round ended with $status, not $1"
}
note "Both hosts back up together: what db and mail have in common is stored once."
before=$(stored) began=$EPOCHREALTIME
round 0
row "round of both hosts" "$began" "$before" "$(shared)"
[ "$(shared)" -gt 1000 ] || fail "nothing is shared"

note "A day later, host2 is killed in the middle of the next round, with all of its processes:"
day 1
is_reading() { # whether a process of host2 has opened its disk
  local process
  process=$(pgrep -g "${pid_of[host2]}" -f join-round | tail -n 1) || return 1
  find "/proc/$process/fd" -lname '*/mail.day1.raw' 2>/dev/null | grep -q .
}
killer() {
  until_true "host2 in the middle of a round" is_reading
  sleep 1
  kill -KILL -- "-${pid_of[host2]}"
  say "kill -9 host2"
}
before=$(stored) began=$EPOCHREALTIME
killer &
killer=$!
disown
round 1 --patience 3s
until_true "the end of host2" is_gone "${pid_of[host2]}"
unset "pid_of[host2]"
row "the next day, host2 killed" "$began" "$before" "$(shared)"
[ "$(snapshots web) $(snapshots db) $(snapshots mail)" = "3 2 1" ] ||
  fail "the other host's disks were not backed up"
echo "The disks of host1 were backed up all the same; that of host2 was not."

note "host2 is started again, and takes part in the next round:"
before=$(stored) began=$EPOCHREALTIME
agent host2
until_true "host2" both
round 0
row "host2 started again, a round" "$began" "$before" "$(shared)"
[ "$(snapshots mail)" -eq 2 ] || fail "mail was not backed up"

note "All three disks are restored and compared:"
began=$EPOCHREALTIME
for disk in web db mail; do
  run restore "$disk@latest" restored.raw
  cmp "$disk.raw" restored.raw
  rm -f restored.raw
done
echo "They are bit-identical."
row "restores of all three" "$began" "$(stored)"
run cluster status
as admin "$silt" cluster status --json 2>/dev/null |
  jq -es 'map(select(.message_type == "cluster_task")) | length == 3 and all(.last != null)' >/dev/null ||
  fail "the status lacks a backup"
began=$EPOCHREALTIME
run check --read-data
row "check of all data" "$began" "$(stored)"

stop host1 TERM
stop host2 TERM
note "Another repository, whose chunks are spread over three storage nodes. Beside each node, a process answers backups:"
nodes() { say "silt $*"; SILT_REPOSITORY=s3://silt/spread as admin "$silt" "$@"; }
nodes init --nodes n1=s3://silt/n1,n2=s3://silt/n2,n3=s3://silt/n3
beside() { start "$1" env "SILT_CONFIG=$work/admin.toml" "XDG_STATE_HOME=$work/$1.state" "SILT_CACHE_DIR=$work/$1.cache" \
  SILT_REPOSITORY=s3://silt/spread "$silt" node run "$1" --json; }
answers() { grep -q '"node_answers"' "$work/$1.log" 2>/dev/null; }
for node in n1 n2 n3; do
  beside "$node"
  until_true "the process of $node" answers "$node"
done
day 0
before=$(stored) began=$EPOCHREALTIME
nodes backup web disk=web.raw
row "web to three nodes" "$began" "$before"
before=$(stored) began=$EPOCHREALTIME
nodes backup db disk=db.raw
row "db to three nodes" "$began" "$before"
note "The process of n2 is killed. The next backup reads its index in the bucket instead:"
say "kill -9 n2"
stop n2 KILL
before=$(stored) began=$EPOCHREALTIME
nodes backup mail disk=mail.raw
row "mail, a process killed" "$began" "$before"
nodes node
SILT_REPOSITORY=s3://silt/spread as admin "$silt" node list --json 2>/dev/null | jq -es 'map(select(.message_type == "node")) | length == 3 and all(.containers > 0)' >/dev/null ||
  fail "a node is empty"
note "n3 is moved to another place, and its old one is removed:"
stop n3 TERM
grep -q '"node_stopped"' n3.log || fail "the process of n3 did not end by itself"
began=$EPOCHREALTIME
nodes node drain n3 s3://silt/elsewhere
row "n3 drained" "$began" "$(stored)"
rm -rf "$work/bucket/silt/n3"
began=$EPOCHREALTIME
for disk in web db mail; do
  nodes restore "$disk@latest" restored.raw
  cmp "$disk.raw" restored.raw
  rm -f restored.raw
done
echo "They are bit-identical."
row "restores from the nodes" "$began" "$(stored)"
nodes check --read-data

printf '\n%-30s%14s%16s%10s\n' "three disks of $(mib "$disk_bytes") MiB in all" "stored MiB" "shared chunks" "seconds"
printf '%-30s%14s%16s%10s\n' "${rows[@]}"
printf '%-30s%14s\n' "in the bucket" "$(mib "$(stored)")"
