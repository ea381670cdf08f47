#!/usr/bin/env bash
# Everything that must hold: format, lints, licences, all tests.
# usage: scripts/test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh test
# Where it puts the servers that it builds.
PATH=$PATH:${GOBIN:-${GOPATH:-$HOME/go}/bin}
hdfs=(--manifest-path programs/silt-hdfs/Cargo.toml --locked --target-dir "${CARGO_TARGET_DIR:-target}")
step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }
# Many tests mostly wait: for servers, clocks and other processes.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-3}
# The outcome depends on the tree alone; scripts/test-random.sh takes new seeds.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}

step "format"
cargo fmt --all --check
cargo fmt --manifest-path programs/silt-hdfs/Cargo.toml --check
step "lints"
# With all features once; without them the tests below build it.
cargo clippy --workspace --all-targets --locked --all-features -- -D warnings
cargo clippy "${hdfs[@]}" --all-targets -- -D warnings
step "guards that scripts/mutations.sh removes"
scripts/mutations.sh --guards
step "licences and sources"
cargo deny --log-level error check licenses bans sources
cargo deny --log-level error --manifest-path programs/silt-hdfs/Cargo.toml check licenses bans sources
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
RUSTDOCFLAGS="-D warnings" cargo doc "${hdfs[@]}" --no-deps --quiet
step "tests"
cargo test --workspace --locked --no-run
cargo test "${hdfs[@]}" --no-run
# The tests on HDFS mostly wait for its servers; meanwhile the others run.
log=$(mktemp)
hdfs_log=$(mktemp)
trap 'kill "$hdfs_tests" 2>/dev/null || true; rm -f "$log" "$hdfs_log"' EXIT
cargo test "${hdfs[@]}" --no-fail-fast >"$hdfs_log" 2>&1 &
hdfs_tests=$!
tests=0
cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" || tests=$?
step "tests on HDFS"
wait "$hdfs_tests" || tests=$?
cat "$hdfs_log"
if [ "$tests" -ne 0 ]; then
  step "what failed"
  # A panic's message is the line after its place.
  grep -hE -A 1 '^test .* FAILED$|panicked at|^error: ' "$log" "$hdfs_log" | grep -vE '^--$|\.\.\. ok$' || true
fi
exit "$tests"
