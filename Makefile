# SPDX-License-Identifier: GPL-2.0
#
# Everything that a person types. "make help" lists the targets that have a "##" comment, by the groups that "##@"
# begins; Documentation/testing.rst has all tests. The module itself is described in Kbuild.

KDIR ?= /lib/modules/$(shell uname -r)/build
PREFIX ?= /usr/local
# bundled: Rust's core library and rust/kernel are compiled into the module. kernel: it is built with the crates of a
# kernel with CONFIG_RUST; for tests.
RUST ?= bundled
# The tool to install, if it is not to be built, and what runs it, if this machine does not.
TOOL ?=
RUN ?=
tool := $(or $(TOOL),$(or $(CARGO_TARGET_DIR),target)/release/stackmap)
share := $(DESTDIR)$(PREFIX)/share
examples := $(share)/doc/stackmap/examples
# The kernel that KDIR builds for; looked up where it is needed.
release = $(shell cat "$(KDIR)/include/config/kernel.release")

.PHONY: all modules modules_install install install-module install-tool uninstall deb clean help tool tool-static run test \
	package-test long-test debug-test rt-test arm64-test kcsan-test fp-test matrix kselftest mutants mutants-glue model mutate-ordering fuzz scale steps cfi-count cfi-count-arm64 bench stale

##@ Build and install (KDIR=TREE RUST=kernel DESTDIR=DIR PREFIX=DIR DEBUG_INFO=y)

all: modules

modules: ## build stackmap.ko for the running kernel or KDIR
	@tools/check-kdir "$(KDIR)" "$(RUST)"
	$(MAKE) -C "$(KDIR)" M="$(CURDIR)" RUST="$(RUST)" $(if $(filter y,$(DEBUG_INFO)),CONFIG_DEBUG_INFO_BTF_MODULES=) modules

tool: ## build the tool; tool-static: without shared libraries
	cargo build --release --package stackmap

tool-static:
	@tools/stackmap/build-static --profile=small

install: install-module install-tool ## install module and tool; install-module, install-tool: one

install-module: modules
	$(MAKE) -C "$(KDIR)" M="$(CURDIR)" INSTALL_MOD_PATH="$(DESTDIR)" modules_install
	$(if $(DESTDIR),,depmod "$(release)")

modules_install: install-module

# TOOL=FILE installs a tool that is built already; RUN=COMMAND runs one of another architecture.
install-tool: $(if $(TOOL),,tool)
	install -D "$(tool)" "$(DESTDIR)$(PREFIX)/bin/stackmap"
	install -d "$(share)/man/man1" "$(share)/bash-completion/completions" "$(share)/zsh/site-functions" \
		"$(share)/fish/vendor_completions.d" "$(examples)"
	$(RUN) "$(tool)" manual "$(share)/man/man1"
	install -D -m 644 -t "$(share)/man/man4" packaging/stackmap.4
	$(RUN) "$(tool)" completions bash >"$(share)/bash-completion/completions/stackmap"
	$(RUN) "$(tool)" completions zsh >"$(share)/zsh/site-functions/_stackmap"
	$(RUN) "$(tool)" completions fish >"$(share)/fish/vendor_completions.d/stackmap.fish"
	install -m 644 packaging/modules-load.conf packaging/modprobe.conf "$(examples)"
	install -D -t "$(examples)/initramfs" packaging/initramfs/hook packaging/initramfs/init-top
	install -D -m 644 -t "$(share)/stackmap/drgn" tools/drgn/stackmap.py
	install -D -m 644 -t "$(share)/stackmap/drgn/vmcore" tools/drgn/vmcore/*.py

uninstall: ## remove module and tool
	rm -f "$(DESTDIR)/lib/modules/$(release)/updates"/stackmap.ko*
	$(if $(DESTDIR),,depmod "$(release)")
	rm -f "$(DESTDIR)$(PREFIX)/bin/stackmap" "$(share)"/man/man1/stackmap.1 "$(share)"/man/man1/stackmap-*.1 \
		"$(share)/man/man4/stackmap.4" \
		"$(share)/bash-completion/completions/stackmap" "$(share)/zsh/site-functions/_stackmap" \
		"$(share)/fish/vendor_completions.d/stackmap.fish"
	rm -rf "$(share)/doc/stackmap" "$(share)/stackmap"

deb: ## build Debian packages in a chroot, into target/debian
	@packaging/build-debs

clean: ## remove the build files of the module
	@rm -f Module.symvers modules.order .Module.symvers.cmd .modules.order.cmd stackmap.* .stackmap.* \
		.module-common.o ..module-common.o.cmd src/*.o src/.*.cmd src/*/*.o src/*/.*.cmd \
		src/shim_bindings.rs src/sizes_bindings.rs src/features.h \
		rust/*.o rust/.*.cmd rust/*.a rust/*.rlib rust/bindings.rs

##@ Try

run: ## record stack ids in Debian's kernel in QEMU (KERNEL=deb13)
	@tools/demo/demo $(KERNEL)

##@ Test (ARGS="oracle race": cases by name; ARGS=--help, ARGS=--list)

test: ## tests that each change must pass; ARGS=lint, host, guest
	@selftests/in-copy selftests/suite $(ARGS)

package-test: deb ## test packages in fresh chroots, DKMS, boot (1 hour, root)
	@selftests/suite --results 'make package-test' --packages $(ARGS)

##@ Longer tests (Documentation/testing.rst; some: ARGS="--kernel debug")

long-test: ## storms, many loads, millions of stacks (1/2 hour a kernel)
	@selftests/suite --results 'make long-test' --long $(ARGS)

debug-test: ## guests with KASAN, lockdep (1 hour); rt-test: PREEMPT_RT
	@selftests/suite --results 'make debug-test' --kernel debug guest

rt-test:
	@selftests/suite --results 'make rt-test' --kernel deb13-rt --kernel debug-rt guest

arm64-test:
	@selftests/suite --results 'make arm64-test' --kernel deb13-arm64 guest

kcsan-test: ## guests that look for data races; arm64-test: arm64
	@selftests/suite --results 'make kcsan-test' --kernel kcsan guest

fp-test:
	@selftests/suite --results 'make fp-test' --kernel fp guest

matrix: ## the same cases on each kernel; fp-test: frame pointers
	@selftests/suite --results 'make matrix' --matrix $(ARGS)

kselftest: ## the kernel's ftrace tests, with and without ids (1/2 hour)
	@selftests/ftrace/kselftest --results 'make kselftest' $(ARGS)

mutants: mutants-glue ## mutation tests of src/ (1 hour); mutants-glue: no src/map
	@selftests/map/mutants

mutants-glue:
	@selftests/glue-mutants --results 'make mutants-glue' --sample 50 $(ARGS)

model: ## loom models, large bounds; mutate-ordering: weak orders
	@selftests/map/models --full

mutate-ordering:
	@selftests/map/mutate-ordering

fuzz: ## fuzz map, stack walk, tool; SECONDS=60 for each target
	@selftests/fuzz/fuzz-module $(SECONDS)
	@tools/stackmap/fuzz/fuzz-tool $(SECONDS)

scale: ## 10^8 events in the map; steps, cfi-count*: user stacks
	@STACKMAP_SCALE=$(or $(EVENTS),100000000) cargo test --quiet --release --test scale -- --nocapture

steps:
	@cargo test --quiet --release --package stackmap-user --test steps --test steps_arm64 -- --ignored --nocapture --skip debian::
	@selftests/step-debian --release

cfi-count:
	@selftests/cfi-count --results 'make $@'

cfi-count-arm64:
	@selftests/cfi-count --arch arm64 --results 'make $@'

stale:
	@selftests/stale --mark

##@ Benchmarks

bench_tables := tools/bench/tables
bench_user := tools/bench/tables --users
bench_kernels := tools/bench/tables --kernels
bench_map := tools/bench/map
bench_tool := tools/stackmap/tests/measure
bench_accept := tools/bench/gate --accept
bench: ## write benchmarks page; ARGS=user|kernels|map|tool|accept
	@$(or $(bench_$(or $(ARGS),tables)),$(error ARGS of bench: user, kernels, map, tool or accept))

help:
	@awk -F ':.*## ' '/^##@ / { print substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
