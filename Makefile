# `make demo` shows the program at work on real disks; `make test` runs everything that must hold.
.PHONY: demo demo-replicate demo-cluster test test-random bench ci build package package-test
build:
	cargo build --release --locked -p silt
demo:
	scripts/demo.sh
# A day's change of a disk over a thin link; two network namespaces as root.
demo-replicate:
	scripts/demo-replicate.sh
# Two agents on a bus back up together into a bucket; one of them is killed.
demo-cluster:
	scripts/demo-cluster.sh
# Against restic, Borg, Kopia and rustic, whichever is on the PATH.
bench:
	scripts/bench.sh
# A Debian package, in target/package.
package:
	scripts/package.sh
# The package in a Debian that is booted for it; needs root.
package-test:
	scripts/package-test.sh
test:
	scripts/test.sh
# The property tests with new seeds and many cases.
test-random:
	scripts/test-random.sh
ci: test
