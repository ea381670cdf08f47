#!/usr/bin/env bash
# Fuzzes every decoder and both ends of a replication with libFuzzer for a while, seeded with the golden files. Needs a nightly toolchain; no other tool.
# usage: scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
host=$(rustc -vV | sed -n 's/^host: //p')
llvm=-Cllvm-args=-sanitizer-coverage
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module $llvm-level=4 $llvm-inline-8bit-counters $llvm-pc-table $llvm-trace-compares"
cargo +nightly build --release --locked --target "$host"
mkdir -p corpus/layouts corpus/sources corpus/nbd corpus/nbd_client corpus/images corpus/deltas corpus/archives corpus/replica corpus/replication_source \
  artifacts
for file in ../testdata/format/v1/*.bin; do
  for choice in $(seq 0 25); do
    # shellcheck disable=SC2059 # the escape is the point
    { printf "\\x$(printf %02x "$choice")"; cat "$file"; } >"corpus/layouts/$(basename "$file").$choice"
  done
done
printf '\x02[{"offset":0,"length":4096,"exists":"true"}]' >corpus/sources/rbd
printf '\x02[{"start":0,"length":4096,"depth":0,"present":true,"zero":false,"data":true}]' >corpus/sources/qemu
printf '\x00\x00\x00\x00\x01a\x00\x01\x00\x03' >corpus/nbd/info
printf '\x01\x00\x00\x00\x01a\x00\x00\x00\x01\x00\x00\x00\x05base:' >corpus/nbd/contexts
printf '\x02\x25\x60\x95\x13%024d' 0 >corpus/nbd/request
# A negotiation of an export of 1 MiB without structured replies, and two replies.
{
  printf 'NBDMAGICIHAVEOPT\x00\x03'
  for option in 11 8; do printf "\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x$(printf %02x $option)\x80\x00\x00\x01\x00\x00\x00\x00"; done
  printf '\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x03'
  printf '\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x00'
  for cookie in 1 2; do printf "\x67\x44\x66\x98\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0$cookie%04096d" 0; done
} >corpus/nbd_client/simple
# Both ends of a replication: each replica, and then one message of each kind changed.
for replica in 0 1 2 15 16 18 30; do
  printf "\\x$(printf %02x $replica)" >"corpus/replica/honest$replica"
  for before in $(seq 0 16); do
    for change in 80 b0 c0 e0 f0; do
      printf "\\x$(printf %02x $replica)\\x$(printf %02x "$before")\\x$change\x00\x01\x01" |
        tee "corpus/replica/$replica-$before-$change" >"corpus/replication_source/$replica-$before-$change"
    done
  done
done
# A stored delta, whose base takes 192 of 256 parts of the input.
{ printf '\x01\xc0\xff'; cat ../testdata/deltas/v1/base.bin ../testdata/deltas/v1/delta.bin; } >corpus/deltas/stored
# An archive in each format of GNU tar, with all kinds of entries that this user can make.
tree=$(mktemp -d)
mkdir -p "$tree/d/$(printf 'n%.0s' $(seq 120))/e"
printf content >"$tree/d/file"
ln "$tree/d/file" "$tree/d/second name"
ln -s file "$tree/d/link"
mkfifo "$tree/d/pipe"
printf x | dd of="$tree/d/sparse" bs=1 seek=300000 status=none
truncate -s 600000 "$tree/d/sparse"
setfattr -n user.note -v value "$tree/d/file" 2>/dev/null || true
for format in v7 oldgnu gnu ustar posix; do
  sparse=""
  [[ $format == v7 || $format == ustar ]] || sparse=--sparse
  { printf '\x00' && tar -C "$tree" --format "$format" $sparse -cf - d 2>/dev/null || true; } >"corpus/archives/$format"
done
for version in 0.0 0.1 1.0; do
  { printf '\x00' && tar -C "$tree" --format posix --sparse-version "$version" --xattrs -S -cf - d; } >"corpus/archives/sparse-$version"
done
{ printf '\x02' && tar -C "$tree" --format posix --xattrs -cf - d; } >"corpus/archives/below"
rm -r "$tree"
# Inputs of a replication are slow, and short ones do little.
options() {
  [[ $1 != repl* ]] || echo -len_control=0 -max_len=64
}
for target in layouts sources nbd nbd_client images deltas archives replica replication_source; do
  "target/$host/release/$target" "corpus/$target" $(options "$target") -artifact_prefix=artifacts/ -max_total_time="$seconds" -rss_limit_mb=2048
done
