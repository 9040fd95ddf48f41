#!/usr/bin/env bash
# Builds the emulator and runs its tests: right kernels in both modes over three seeds (eight with LLMC_CHECK_ALL=1), every planted bug, and every mistake of a program.
set -u
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
export EMU_DIR=$BUILD/emu
make --no-print-directory -s -f emu/emu.mk BUILD="$BUILD" emu-lib "$EMU_DIR/t_basic" "$EMU_DIR/t_sm90" "$EMU_DIR/t_bugs" "$EMU_DIR/t_host" "$EMU_DIR/t_peers" || exit 1
rc=0
seeds="0 1 2"
[ -z "${LLMC_CHECK_ALL:-}" ] || seeds="$seeds 3 4 5 6 7"
for mode in fast check; do
	for seed in $seeds; do
		for t in t_basic t_sm90; do
			LLMC_EMU_QUIET=1 LLMC_EMU_MODE=$mode LLMC_EMU_SEED=$seed "$EMU_DIR/$t" || { echo "$t failed: mode $mode, seed $seed"; rc=1; }
		done
	done
done
"$EMU_DIR/t_bugs" "" 4 || rc=1
"$EMU_DIR/t_host" "" 4 || rc=1
"$EMU_DIR/t_peers" "" 4 || rc=1
[ $rc = 0 ] && echo "emulator: all tests passed"
exit $rc
