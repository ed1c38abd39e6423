# SPDX-License-Identifier: GPL-2.0
#
# Everything that a person types; "make help" lists it. The module itself is described in Kbuild.

KDIR ?= /lib/modules/$(shell uname -r)/build
PREFIX ?= /usr/local
# The tool to install, if it is not to be built.
TOOL ?=
tool := $(or $(TOOL),$(or $(CARGO_TARGET_DIR),target)/release/stackmap)
share := $(DESTDIR)$(PREFIX)/share
examples := $(share)/doc/stackmap/examples
# The kernel that KDIR builds for; looked up where it is needed.
release = $(shell cat "$(KDIR)/include/config/kernel.release")

.PHONY: all modules modules_install install install-module install-tool uninstall clean help run tool tool-static bench-tool test lint guest-test kselftest \
	long-test debug-test kcsan-test selftest-vm model mutate-ordering mutants mutants-glue fuzz scale bench-map \
	bench bench-accept deb package-test

all: modules

modules: ## builds stackmap.ko against KDIR (default: the running kernel's build tree)
	@tools/check-kdir "$(KDIR)"
	$(MAKE) -C "$(KDIR)" M="$(CURDIR)" modules

install: install-module install-tool ## installs the module, the tool, its manual and completions: DESTDIR, KDIR, PREFIX

install-module: modules ## only the module, for the kernel of KDIR
	$(MAKE) -C "$(KDIR)" M="$(CURDIR)" INSTALL_MOD_PATH="$(DESTDIR)" modules_install
	$(if $(DESTDIR),,depmod "$(release)")

modules_install: install-module

install-tool: $(if $(TOOL),,tool) ## only the tool, its manual, completions and examples of settings; TOOL=FILE for one that is built
	install -D "$(tool)" "$(DESTDIR)$(PREFIX)/bin/stackmap"
	install -d "$(share)/man/man1" "$(share)/bash-completion/completions" "$(share)/zsh/site-functions" \
		"$(share)/fish/vendor_completions.d" "$(examples)"
	"$(tool)" manual "$(share)/man/man1"
	install -D -m 644 -t "$(share)/man/man4" packaging/stackmap.4
	"$(tool)" completions bash >"$(share)/bash-completion/completions/stackmap"
	"$(tool)" completions zsh >"$(share)/zsh/site-functions/_stackmap"
	"$(tool)" completions fish >"$(share)/fish/vendor_completions.d/stackmap.fish"
	install -m 644 packaging/modules-load.conf packaging/modprobe.conf "$(examples)"
	install -D -t "$(examples)/initramfs" packaging/initramfs/hook packaging/initramfs/init-top

uninstall: ## removes what install has installed: the same DESTDIR, KDIR and PREFIX
	rm -f "$(DESTDIR)/lib/modules/$(release)/updates"/stackmap.ko*
	$(if $(DESTDIR),,depmod "$(release)")
	rm -f "$(DESTDIR)$(PREFIX)/bin/stackmap" "$(share)"/man/man1/stackmap.1 "$(share)"/man/man1/stackmap-*.1 \
		"$(share)/man/man4/stackmap.4" \
		"$(share)/bash-completion/completions/stackmap" "$(share)/zsh/site-functions/_stackmap" \
		"$(share)/fish/vendor_completions.d/stackmap.fish"
	rm -rf "$(share)/doc/stackmap"

deb: ## builds stackmap-dkms and stackmap-tools for Debian into target/debian, in a chroot; runs lintian
	@packaging/build-debs

clean: ## removes what the build of the module left here
	@rm -f Module.symvers modules.order .Module.symvers.cmd .modules.order.cmd stackmap.* .stackmap.* \
		.module-common.o ..module-common.o.cmd src/*.o src/.*.cmd src/*/*.o src/*/.*.cmd \
		src/shim_bindings.rs src/functions_bindings.rs

tool: ## builds the command-line tool: target/release/stackmap
	cargo build --release --package stackmap

tool-static: ## builds it without any shared library, for guests; prints where it is
	@tools/stackmap/build-static

bench-tool: ## measures the command-line tool with its largest inputs: 2 minutes, 1.2 GB in /tmp
	@tools/stackmap/tests/measure.sh

run: ## boots a stock Debian kernel with the module loaded and shows what it does
	@tools/demo/run

test: ## tests everything: lint, host tests, guests with both kernels
	@selftests/run

guest-test: ## only the guests; KERNEL=deb14 for one kernel
	@selftests/run $(if $(KERNEL),--kernel $(KERNEL)) guest

kselftest: ## the kernel's own ftrace suite without the module, with it, and with its option on (an hour)
	@selftests/ftrace/run

package-test: deb ## installs the packages in fresh chroots, builds by DKMS, boots what came out (twenty minutes, root)
	@selftests/run --results 'make package-test' --packages $(if $(KERNEL),--kernel $(KERNEL))

long-test: ## what takes long: storms, many loads, millions of stacks (half an hour a kernel); KERNEL=debug
	@selftests/run --results 'make long-test' --long $(if $(KERNEL),--kernel $(KERNEL))

debug-test: ## the guests with a kernel that watches itself: KASAN, lockdep, kmemleak, KUnit
	@selftests/run --results 'make debug-test' --kernel debug guest

kcsan-test: ## the guests in which data races would show, with a kernel that finds them
	@selftests/run --results 'make kcsan-test' --kernel kcsan guest

model: ## the larger bounds of the map's loom models; make test runs most of them in all executions
	@selftests/map/loom.sh --full

mutate-ordering: ## weakens each memory ordering of the map: the loom models must notice
	@selftests/map/mutate-ordering

fuzz: ## fuzzes the map, and what the tool reads; SECONDS=60 for each target
	@selftests/map/fuzz/run $(SECONDS)
	@tools/stackmap/fuzz/run $(SECONDS)

scale: ## two CPUs and 10^8 events on the host; EVENTS=N for another number
	@STACKMAP_SCALE=$(or $(EVENTS),100000000) cargo test --quiet --release --test scale -- --nocapture

bench: ## what an id costs and saves, against what else there is; writes Documentation/benchmarks.md
	@tools/bench/tables

bench-accept: ## keeps the instruction counts of now, which make test compares with
	@tools/bench/gate --accept

bench-map: ## what the map costs: instructions, and the throughput of two CPUs over one
	@tools/bench/run

mutants: mutants-glue ## changes the map in every way that cargo-mutants knows (45 minutes): the tests must notice
	@selftests/map/mutants

mutants-glue: ## puts the mistakes of selftests/mutations.toml into the rest of src/ (half an hour): a guest must notice
	@selftests/glue-mutants --results 'make mutants-glue'

selftest-vm: ## tests the guest runner itself
	@tools/vm/selftest

lint: ## rustfmt, clippy, checkpatch, shellcheck, flake8, and the documents by the kernel's rules
	@selftests/lint

help:
	@awk -F ':.*## ' '/^[a-z_-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  tools/vm/run --help     a guest for your own experiments'
	@echo '  selftests/run --list    the tests, one by one'
