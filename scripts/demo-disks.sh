#!/usr/bin/env bash
# Makes two disks, web and db, with a day of change: FOLDER/{web,db}.day{0,1}.raw.
# With root and loop mounts they are real Debian systems, changed by apt and by their files being edited in place;
# else small ext4 file systems filled from this machine's own programs and changed with debugfs.
# With names, small ext4 file systems in any case, one of each name.
# usage: scripts/demo-disks.sh FOLDER [NAME...]
set -euo pipefail
out=$1
shift
export PATH="$PATH:/sbin:/usr/sbin"
mkdir -p "$out"
mnt="$out/mnt"

can_mount() {
  [ "$(id -u)" -eq 0 ] || return 1
  truncate -s 8M "$out/probe.raw" && mke2fs -q -F "$out/probe.raw" && mkdir -p "$mnt" || return 1
  mount -o loop "$out/probe.raw" "$mnt" 2>/dev/null || return 1
  umount "$mnt"
}

with_mounted() { # image, function
  mount -o loop "$1" "$mnt"
  local status=0
  ( set -e; "$2" "$mnt" "$3" ) || status=$?
  sync
  umount "$mnt"
  return "$status"
}

in_guest() { # root, command
  for folder in proc dev; do mount --bind "/$folder" "$1/$folder"; done
  local status=0
  chroot "$1" env DEBIAN_FRONTEND=noninteractive sh -c "$2" >/dev/null 2>&1 || status=$?
  for folder in dev proc; do umount "$1/$folder"; done
  return "$status"
}

first_day() { # root, package
  tar -C "$1" -xf "$out/base.tar"
  printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"; chmod +x "$1/usr/sbin/policy-rc.d"
  in_guest "$1" "apt-get update && apt-get install -y --no-install-recommends $2"
  mkdir -p "$1/srv/data"
  head -c 30M /dev/urandom >"$1/srv/data/store.bin"
}

next_day() { # root, package
  in_guest "$1" "apt-get install -y --no-install-recommends $2"
  # Scattered writes inside a file, an appended log, and a file rewritten elsewhere on the disk.
  for i in $(seq 1 200); do
    head -c 4096 /dev/urandom | dd of="$1/srv/data/store.bin" bs=4096 seek=$((i * 37)) conv=notrunc status=none
  done
  seq 1 200000 >>"$1/srv/data/app.log"
  cp "$1/srv/data/store.bin" "$1/srv/data/copy.bin" && rm "$1/srv/data/store.bin" && mv "$1/srv/data/copy.bin" "$1/srv/data/store.bin"
}

debian_disks() {
  echo "making two Debian disks (mmdebstrap, about a minute)"
  [ -f "$out/base.tar" ] || mmdebstrap --quiet --variant=minbase bookworm "$out/base.tar"
  for disk in "web nginx-light redis-server" "db sqlite3 postgresql-client"; do
    read -r name first later <<<"$disk"
    truncate -s 2G "$out/$name.day0.raw"; mke2fs -q -t ext4 -F "$out/$name.day0.raw"
    with_mounted "$out/$name.day0.raw" first_day "$first"
    cp --sparse=always "$out/$name.day0.raw" "$out/$name.day1.raw"
    with_mounted "$out/$name.day1.raw" next_day "$later"
  done
}

plain_disks() { # names
  for name in "$@"; do
    rm -rf "$out/tree"; mkdir -p "$out/tree/bin" "$out/tree/data"
    find /usr/bin -maxdepth 1 -type f -size -4M -readable | sort | sed -n 1,300p | xargs cp -t "$out/tree/bin"
    head -c 16M /dev/urandom >"$out/tree/data/$name.bin"
    truncate -s 1G "$out/$name.day0.raw"
    mke2fs -q -t ext4 -F -d "$out/tree" "$out/$name.day0.raw"
    cp --sparse=always "$out/$name.day0.raw" "$out/$name.day1.raw"
    seq 1 300000 >"$out/log"
    head -c 2M /dev/urandom >"$out/blob"
    cp "$out/tree/data/$name.bin" "$out/moved"
    debugfs -w -f /dev/stdin "$out/$name.day1.raw" >/dev/null 2>&1 <<EOC
write $out/log data/app.log
write $out/blob data/blob
write $out/moved data/moved
rm data/$name.bin
EOC
  done
  rm -rf "$out/tree" "$out/log" "$out/blob" "$out/moved"
}

if [ $# -gt 0 ]; then
  plain_disks "$@"
elif can_mount && command -v mmdebstrap >/dev/null; then
  debian_disks
else
  echo "no root or no loop mounts here: making two small ext4 disks without them"
  plain_disks web db
fi
rm -rf "$out/probe.raw" "$mnt"
