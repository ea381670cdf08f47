# `make demo` shows the program at work on real disks; `make test` runs everything that must hold.
.PHONY: demo test ci build
build:
	cargo build --release --locked -p silt
demo:
	scripts/demo.sh
test:
	scripts/test.sh
ci: test
