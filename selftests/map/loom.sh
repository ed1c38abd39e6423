#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Runs the loom models of the map, those of many executions with few preemptions, or with --full
# with more, or none left out.
# Further arguments are names of models, or of a part of them.

set -eu
cd "$(dirname "$0")/../.."
if [ "${1:-}" = --full ]; then
	shift
	export STACKMAP_LOOM=full
fi
RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}" RUST_BACKTRACE="${RUST_BACKTRACE:-0}" exec \
	cargo test --quiet --profile model --target-dir "${CARGO_TARGET_DIR:-target}/loom" \
	--test loom -- --nocapture "$@"
