# A thin front for CMake, Ninja and scripts/: what a contributor does in a day. `make help` lists it.
#
# UNFENCE_NO_INSTALL=1 names missing packages instead of installing them; CMAKE_FLAGS= goes to CMake.
BUILD ?= build
PREFIX ?= /usr/local
CMAKE_FLAGS ?=

# Ninja talks on standard output, which belongs to what is run (`make run ARGS=--json | ...`).
# TEXT reaches the shell as a variable of its own, so any name of a file will do.
export TEXT

unfence := $(BUILD)/tools/unfence/unfence

# configure FOLDER OPTIONS: CMake says much; its words matter only if it fails.
configure = mkdir -p $1 && cmake -S . -B $1 -G Ninja $2 $(CMAKE_FLAGS) >$1/configure.log 2>&1 || { cat $1/configure.log; exit 1; }

.DEFAULT_GOAL := build

## build: the library, the unfence command and the examples, in build/
.PHONY: build
build: packages-run
	@$(call configure,$(BUILD),-DUNFENCE_TESTS=OFF -DUNFENCE_WERROR=OFF)
	@ninja -C $(BUILD) --quiet >&2

## run: the MoE layer over four PEs of this host; ARGS= for it, TEXT= a file or folder of your own
.PHONY: run
run: build
	@$(unfence) run -n 4 --no-prefix -- moe-layer $${TEXT:+--text "$$TEXT"} $(ARGS)

## test: everything that fits into twenty minutes on two cores; the last line counts it
.PHONY: test
test: packages-test
	@scripts/test

## test-long: that, and what takes longer
.PHONY: test-long
test-long: packages-long
	@scripts/test long

## one: one test by name: make one T=base_map
.PHONY: one
one: packages-test
	@$(call configure,build/gcc)
	@ninja -C build/gcc --quiet
	@ctest --test-dir build/gcc --output-on-failure --no-tests=error -R '$(T)'

## format: puts every C file into the project's shape
.PHONY: format
format:
	@scripts/c-files | xargs clang-format -i

## lint: format and static checks, changing nothing
.PHONY: lint
lint: packages-test
	@scripts/check-format
	@scripts/check-static

## fuzz: each decoder for a minute, or for FUZZ_SECONDS=
.PHONY: fuzz
fuzz: packages-test
	@CHECKS='fuzz_*' scripts/test

## bench: the project's speed targets, measured; or ARGS= for `unfence bench`
.PHONY: bench
bench: build
	@$(unfence) bench $(or $(ARGS),targets)

## docs: the pages that are printed from the code
.PHONY: docs
docs: build
	@$(BUILD)/tools/settings_doc/settings_doc >docs/settings.md

## install: into PREFIX (/usr/local), below DESTDIR
.PHONY: install
install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

## clean: all build folders
.PHONY: clean
clean:
	rm -rf build build-*

## help: this list
.PHONY: help
help:
	@awk -F ': ' '/^## / { printf "  make %-10s %s\n", substr($$1, 4), substr($$0, length($$1) + 3) }' Makefile

packages-%:
	@scripts/packages $*
