#!/usr/bin/env bash
# Tests of the emulator. Usage: tests/emu/run.sh [PART...]; without parts it runs all of them:
#   fast check         correct kernels in each mode, with three seeds (eight with LLMC_CHECK_ALL=1)
#   bugs host peers    planted bugs in kernels, programs, and between devices: all must be found
set -u
cd "$(dirname "$0")/../.." || exit
BUILD=${BUILD:-build}
export EMU_DIR=$BUILD/emu
make --no-print-directory -s -f emu/emu.mk BUILD="$BUILD" emu-lib emu-tests || exit 1
rc=0
seeds="0 1 2"
[ -z "${LLMC_CHECK_ALL:-}" ] || seeds="$seeds 3 4 5 6 7"
[ $# -gt 0 ] || set -- fast check bugs host peers
for part; do
	case $part in
	fast | check)
		for seed in $seeds; do
			for t in t_basic t_sm90; do
				LLMC_EMU_QUIET=1 LLMC_EMU_MODE=$part LLMC_EMU_SEED=$seed "$EMU_DIR/$t" || { echo "$t failed: mode $part, seed $seed"; rc=1; }
			done
		done
		;;
	*) "$EMU_DIR/t_$part" "" 4 || rc=1 ;;
	esac
done
[ $rc = 0 ] && echo "emulator: all tests passed"
exit $rc
