#!/usr/bin/env bash
# The property tests with new seeds and many cases. scripts/test.sh gives them one seed, so that its outcome
# depends on the tree alone.
# usage: scripts/test-random.sh [CASES]
set -euo pipefail
cd "$(dirname "$0")/.."
export PROPTEST_CASES=${1:-4096}
mapfile -t packages < <(grep -rl 'proptest!' crates --include='*.rs' | cut -d/ -f2 | sort -u)
tests=()
for package in "${packages[@]}"; do tests+=(-p "silt-$package"); done
cargo test --locked --no-fail-fast "${tests[@]}" --lib --tests
