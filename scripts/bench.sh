#!/usr/bin/env bash
# Measures silt against the peers that are on the PATH and against this machine's bounds, on real disks:
# those in DISKS (files VM.dayN.raw), or two that are made here. Prints the table; JSON and a plot lie beside it.
# usage: scripts/bench.sh [DISKS [WORK]], with RUNS=3
set -euo pipefail
cd "$(dirname "$0")/.."
disks=${1:-$PWD/.bench/disks}
work=${2:-$PWD/.bench/work}
scripts/setup.sh demo
cargo build --release --locked -p silt -p silt-bench
if [ $# -eq 0 ] && [ ! -f "$disks/db.day1.raw" ]; then
  mkdir -p "$disks"
  scripts/demo-disks.sh "$disks"
fi
target/release/silt-bench run --disks "$disks" --work "$work" --silt target/release/silt --runs "${RUNS:-3}"
echo "Results: $work/results.json, results.md, results.svg"
