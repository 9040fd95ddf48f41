#!/bin/bash
# The test suite. Usage: tools/check.sh [STEP ...]; without steps, all of them in order:
#   env     Python environment, demo model
#   build   gcc, warnings are errors              clang   the same with clang, objects only: those of the fuzzers, which need them too
#   unit    C unit tests                          pytest  text, kernel, golden and end-to-end tests
#   serve   the HTTP server with real clients     cuda    kernels and models on emulated GPUs, NVRTC
#   san     unit tests and models under ASan and UBSan, kernels included
#   tsan    threads under TSan                    fuzz    short deterministic fuzz runs
#   emu     the GPU emulator's own tests
# Prints a line for each step with its time, the output of what failed, and exits 1 when any step did.
set -u
cd "$(dirname "$0")/.." || exit
# a+b: beside each other; a,b: one behind the other, beside what stands behind a +. Steps of one process go beside those that build.
steps=${*:-"deps build+env clang unit pytest cuda san+tsan,fuzz,emu+serve"}
jobs=$(nproc)
export LLMC_CACHE=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}
log=build/check
mkdir -p "$log"
: >"$log/failed"

step_deps() {
	tools/deps.sh
}

step_build() {
	make -s -j"$jobs" all
}

step_env() {
	tools/venv.sh >/dev/null && tools/smollm2.sh
}

step_clang() {
	command -v clang >/dev/null || { echo "no clang: skipped"; return 0; }
	local folder
	folder=$(tests/fuzz/run.sh --library) || return 1
	case $folder in
	*clang*) ;;
	*) folder=build/clang; make -s -j"$jobs" BUILD=$folder CC=clang CFLAGS=-O1 lib || return 1 ;;
	esac
	local cli=(cli/*.c)
	cli=("${cli[@]/#/$folder/}")
	make -s -j"$jobs" BUILD="$folder" CC=clang CFLAGS=-O1 "${cli[@]/%.c/.o}"
}

# check: a GPU's driver and a session, with every access of every kernel looked at
step_unit() {
	make -s -j"$jobs" emu-lib || return 1 # programs skip what needs it
	make -s -j"$jobs" unit UNIT_CHECKED="check:build/unit/test_cuda_session check:build/unit/test_cuda_load"
}

# pytest in the tests' own environment. One to three tests that failed run once more, alone: those that pass then are named in the step's line as unsteady,
# one that fails again fails the step.
run_pytest() {
	local venv failed again
	venv=$(tools/venv.sh) || return 1
	LLMC_SMOLLM2=$(tools/smollm2.sh) || return 1
	export LLMC_SMOLLM2
	failed=$(mktemp "$log/failed.XXXXXX")
	# a process gets neighbouring tests, so that kernels and models which they share are made once
	local pytest=(env PYTHONPATH=bindings/python "$venv/bin/python" -m pytest -q -p no:cacheprovider)
	LLMC_FAILED=$failed "${pytest[@]}" --dist worksteal --maxfail=10 --durations=15 "$@" && return
	mapfile -t again <"$failed"
	[ ${#again[@]} -ge 1 ] && [ ${#again[@]} -le 3 ] || return 1
	"${pytest[@]}" "${again[@]}" || return 1
	echo "passed, but unsteady (failed among others, passed alone): ${again[*]}"
}

step_pytest() {
	run_pytest -n "$jobs" tests --ignore=tests/cuda --ignore=tests/serve --ignore=tests/e2e/test_cuda.py
}

step_serve() {
	run_pytest tests/serve
}

step_cuda() {
	make -s -j"$jobs" emu-lib || return 1
	run_pytest -n "$jobs" tests/cuda tests/e2e/test_cuda.py
}

# Everything of the library, the emitted kernels too, under AddressSanitizer and UndefinedBehaviorSanitizer. Programs of the emulated GPU have no emulator
# here, and would do nothing; test_engine runs in sanitized.sh, on kernels that are sanitized as well, and in make check-all without those, too.
step_san() {
	local unit gpu="test_cuda(|_lt|_machines|_session)\.c" apart="test_engine\.c" san="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
	make -s -j"$jobs" BUILD=build/san CFLAGS="-O1 -g1" SAN="$san" build/san/llmc build/san/unit/test_engine || return 1
	[ -z "${LLMC_CHECK_ALL:-}" ] || apart=$gpu
	unit=$(printf '%s\n' tests/unit/test_*.c | grep -Ev -e "$gpu" -e "$apart" | sed -e 's|^tests/|build/san/|' -e 's/\.c$//' | paste -sd' ')
	# Kernels see tables of products (cpu/gemm/matmul_kernel.h) by name; where a file with one has been unloaded, this check of ASan reads what is gone.
	export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1
	make -s -j"$jobs" BUILD=build/san CFLAGS="-O1 -g1" SAN="$san" unit UNIT="$unit" || return 1
	tests/e2e/sanitized.sh build/san/llmc "$san"
}

step_tsan() {
	local san="-fsanitize=thread"
	make -s -j"$jobs" BUILD=build/tsan CFLAGS="-O1 -g1" SAN="$san" build/tsan/llmc build/tsan/unit/test_engine build/tsan/unit/test_serve_models || return 1
	TSAN_OPTIONS=halt_on_error=1 tests/e2e/threads.sh build/tsan/llmc
}

step_emu() {
	tests/emu/run.sh
}

step_fuzz() {
	tests/fuzz/run.sh
}

# run_step STEP: its line, its log where it failed
run_step() {
	local start=$SECONDS
	if "step_$1" >"$log/$1.log" 2>&1; then
		printf '%-8s passed  %4d s  %s\n' "$1" $((SECONDS - start)) "$(tail -n 1 "$log/$1.log" | cut -c1-120)"
	else
		printf '%-8s FAILED  %4d s\n%s\n' "$1" $((SECONDS - start)) "$(tail -n 150 "$log/$1.log")"
		echo "$1" >>"$log/failed"
	fi
}

run_lane() {
	local step
	for step; do
		run_step "$step"
	done
}

# steps in the background do not hear Ctrl-C
trap 'trap - INT TERM; kill 0; exit 130' INT TERM
for side in $steps; do
	for lane in ${side//+/ }; do
		# shellcheck disable=SC2086
		run_lane ${lane//,/ } &
	done
	wait
	! grep -qx build "$log/failed" || break
done
if [ -s "$log/failed" ]; then
	echo "check: failed: $(paste -sd' ' "$log/failed")"
	exit 1
fi
echo "check: all steps passed in $SECONDS s"
