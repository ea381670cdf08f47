#!/usr/bin/env bash
# Everything that must hold: format, lints, licences, all tests.
# usage: scripts/test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh test
step() { printf '\n== %s\n' "$*"; }

step "format"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo clippy --workspace --all-targets --locked --all-features -- -D warnings
step "licences and sources"
cargo deny --log-level error check licenses bans sources
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
step "tests"
cargo test --workspace --locked --no-fail-fast
step "tests on HDFS"
cargo test -p silt -p silt-remote --features silt/hdfs --locked --no-fail-fast --test hdfs --test e2e hdfs
