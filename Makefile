# `make demo` shows the program at work on real disks; `make test` runs everything that must hold.
.PHONY: demo test bench ci build
build:
	cargo build --release --locked -p silt
demo:
	scripts/demo.sh
# Against restic, Borg, Kopia and rustic, whichever is on the PATH.
bench:
	scripts/bench.sh
test:
	scripts/test.sh
ci: test
