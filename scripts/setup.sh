#!/usr/bin/env bash
# Installs what the demo and the tests need and this machine lacks: Debian packages, cargo-deny, MinIO, NATS,
# Azurite and HDFS.
# usage: scripts/setup.sh [demo|demo-replicate|demo-cluster|test]
set -euo pipefail
purpose=${1:-test}
cargo_deny_version=0.18.9
minio_version=v0.0.0-20260212201848-7aac2a2c5b7c
nats_version=v2.15.2
hadoop_version=3.4.1
azurite_version=3.37.0

declare -A package_of=(
  [cc]=build-essential [qemu-img]=qemu-utils [qemu-nbd]=qemu-utils [mke2fs]=e2fsprogs [debugfs]=e2fsprogs
  [mmdebstrap]=mmdebstrap [nbdinfo]=libnbd-bin [nbdcopy]=libnbd-bin [nbdkit]=nbdkit [jq]=jq [losetup]=mount [python3]=python3
  [qemu-io]=qemu-utils [openssl]=openssl
)
# What only tests ask.
[ "$purpose" != test ] || package_of+=([sfdisk]=fdisk [fusermount3]=fuse3 [rsync]=rsync [bsdtar]=libarchive-tools [unzip]=unzip [getfattr]=attr [getfacl]=acl [lsattr]=e2fsprogs [git]=git [setpriv]=util-linux [systemd-analyze]=systemd [mandoc]=mandoc [man]=man-db [zsh]=zsh [fish]=fish [nbdsh]=python3-libnbd [restic]=restic [borg]=borgbackup [faketime]=faketime [fio]=fio [stress-ng]=stress-ng [ip]=iproute2 [tc]=iproute2 [mkfs.btrfs]=btrfs-progs [java]=default-jre-headless [mvn]=maven [npm]=npm)
[ "$purpose" != demo-replicate ] || package_of+=([rsync]=rsync [ip]=iproute2 [tc]=iproute2 [bc]=bc)
missing=()
for command in "${!package_of[@]}"; do
  PATH="$PATH:/sbin:/usr/sbin" command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
if [ ${#missing[@]} -gt 0 ]; then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  echo "installing: ${missing[*]}"
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: as root, install: ${missing[*]}" >&2; exit 1; }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
command -v cargo >/dev/null || { echo "setup: install Rust (https://rustup.rs) first" >&2; exit 1; }
if [ "$purpose" = test ] && ! command -v cargo-deny >/dev/null; then
  echo "installing: cargo-deny $cargo_deny_version"
  # Without optimization it is built in half the time, and fast enough.
  cargo install --quiet --locked --debug "cargo-deny@$cargo_deny_version"
fi
# The object store and the bus of the tests and of the cluster; MinIO takes a few minutes to build.
go_bin=${GOBIN:-${GOPATH:-$HOME/go}/bin}
for server in "minio github.com/minio/minio@$minio_version" \
  "nats-server github.com/nats-io/nats-server/v2@$nats_version"; do
  read -r program package <<<"$server"
  [[ "$purpose" = test || "$purpose" = demo-cluster ]] || continue
  if ! command -v "$program" >/dev/null && [ ! -x "$go_bin/$program" ]; then
    command -v go >/dev/null || { echo "setup: install Go (https://go.dev) first" >&2; exit 1; }
    echo "installing: $package"
    go install "$package"
  fi
done
# What stands in for Azure's blob storage; where it can't be had, its tests are skipped and say so.
azurite=${XDG_DATA_HOME:-$HOME/.local/share}/silt-tests/azurite
if [ "$purpose" = test ] && [ ! -x "$azurite/node_modules/.bin/azurite-blob" ]; then
  echo "installing: azurite $azurite_version"
  npm install --silent --no-audit --no-fund --prefix "$azurite" "azurite@$azurite_version" >/dev/null ||
    echo "setup: azurite can't be had; Azure is not tested" >&2
fi
# A name node and a data node of HDFS; where they can't be had, their tests are skipped and say so.
hadoop=${XDG_DATA_HOME:-$HOME/.local/share}/silt-tests/hadoop
if [ "$purpose" = test ] && [ ! -e "$hadoop/complete" ]; then
  echo "installing: HDFS of Hadoop $hadoop_version"
  for artifact in org.apache.hadoop:hadoop-client-{api,runtime,minicluster}:$hadoop_version \
    org.slf4j:slf4j-api:1.7.36 commons-logging:commons-logging:1.2 org.xerial.snappy:snappy-java:1.1.10.4; do
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
      "-Dartifact=$artifact" "-DoutputDirectory=$hadoop" ||
      { echo "setup: $artifact can't be had; HDFS is not tested" >&2; hadoop=""; break; }
  done
  [ -z "$hadoop" ] || touch "$hadoop/complete"
fi
